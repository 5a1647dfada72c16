// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that a device writes trace to: AUX pages that are mapped for it, and
 * coherent memory.
 */

#include "helpers.h"

#include <linux/device.h>
#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/iommu-dma.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

struct rust_perf_dma {
	struct device *dev;
	enum dma_data_direction direction;
	/* AUX pages, each with a reference. */
	struct sg_table table;
	struct page **pages;
	unsigned int nr;
	/* Or coherent memory. */
	void *memory;
	dma_addr_t address;
	size_t size;
};

/*
 * Whether the device reaches a page by itself. Without an IOMMU and with a mask
 * that does not cover all memory, a page may lie beyond it. dma_map_sgtable()
 * would bounce it, or warn if there is no swiotlb.
 */
static bool reachable(struct device *dev, void *address)
{
	dma_addr_t dma;

	if (!dma_addressing_limited(dev))
		return true;
	dma = phys_to_dma(dev, virt_to_phys(address));
	return dma != DMA_MAPPING_ERROR &&
	       dma + PAGE_SIZE - 1 <= min_not_zero(dma_get_mask(dev), dev->bus_dma_limit);
}

/*
 * Whether swiotlb bounces the mapping. On a coherent platform that alone makes
 * a segment need synchronisation. Elsewhere every segment does, and then the
 * device is refused if any of its mappings might be bounced.
 */
static bool bounced(struct rust_perf_dma *dma)
{
	struct scatterlist *sg;
	unsigned int i;

	if (!dev_is_dma_coherent(dma->dev))
		return dma_max_mapping_size(dma->dev) != SIZE_MAX;
	/* Not dma_need_sync(): with CONFIG_DMA_API_DEBUG that is always true. */
	if (dev_dma_skip_sync(dma->dev))
		return false;
	/*
	 * __dma_need_sync() knows swiotlb's memory from other memory only without
	 * an IOMMU. With one, what is aligned to the IOMMU's pages is not bounced,
	 * as all AUX pages are where these are no larger.
	 */
	if (use_dma_iommu(dma->dev))
		return dma_get_merge_boundary(dma->dev) >= PAGE_SIZE;

	for_each_sgtable_dma_sg(&dma->table, sg, i) {
		if (__dma_need_sync(dma->dev, sg_dma_address(sg)))
			return true;
	}
	return false;
}

static void put_pages(struct rust_perf_dma *dma)
{
	while (dma->nr)
		put_page(dma->pages[--dma->nr]);
	kvfree(dma->pages);
}

/*
 * Maps @nr AUX pages for the device. -EFAULT if it does not reach them by itself:
 * what swiotlb bounces is copied when the mapping is synchronised, over bytes
 * that software has written.
 *
 * The device stays bound until rust_perf_dma_free().
 */
struct rust_perf_dma *rust_perf_dma_map(struct device *dev, void **addresses,
					unsigned int nr,
					enum dma_data_direction direction)
{
	struct rust_perf_dma *dma;
	int error;

	dma = kzalloc(sizeof(*dma), GFP_KERNEL);
	if (!dma)
		return ERR_PTR(-ENOMEM);

	dma->dev = dev;
	dma->direction = direction;
	dma->pages = kvmalloc_array(nr, sizeof(*dma->pages), GFP_KERNEL);
	if (!dma->pages) {
		kfree(dma);
		return ERR_PTR(-ENOMEM);
	}

	for (; dma->nr < nr; dma->nr++) {
		if (!reachable(dev, addresses[dma->nr])) {
			error = -EFAULT;
			goto put;
		}
		dma->pages[dma->nr] = virt_to_page(addresses[dma->nr]);
		get_page(dma->pages[dma->nr]);
	}

	/* At least a page: perf's areas are made of them. */
	error = sg_alloc_table_from_pages_segment(&dma->table, dma->pages, nr, 0,
						  (size_t)nr << PAGE_SHIFT,
						  max(dma_get_max_seg_size(dev) & PAGE_MASK,
						      PAGE_SIZE),
						  GFP_KERNEL);
	if (error)
		goto put;

	error = dma_map_sgtable(dev, &dma->table, direction, DMA_ATTR_NO_WARN);
	if (error)
		goto free;

	if (bounced(dma)) {
		error = -EFAULT;
		goto unmap;
	}
	return dma;

unmap:
	/* Not a byte of what swiotlb has is to be copied. */
	dma_unmap_sgtable(dev, &dma->table, direction, DMA_ATTR_SKIP_CPU_SYNC);
free:
	sg_free_table(&dma->table);
put:
	if (error == -EFAULT)
		dev_warn_ratelimited(dev, "cannot map an AUX area for DMA: the device does not reach its memory; widen the DMA mask, or use an IOMMU\n");
	put_pages(dma);
	kfree(dma);
	return ERR_PTR(error);
}

/* Coherent memory, zeroed, from the device's node. */
struct rust_perf_dma *rust_perf_dma_alloc(struct device *dev, size_t size)
{
	struct rust_perf_dma *dma;

	dma = kzalloc(sizeof(*dma), GFP_KERNEL);
	if (!dma)
		return ERR_PTR(-ENOMEM);

	dma->dev = dev;
	dma->size = size;
	dma->memory = dma_alloc_coherent(dev, size, &dma->address,
					 GFP_KERNEL | __GFP_NOWARN);
	if (!dma->memory) {
		kfree(dma);
		return ERR_PTR(-ENOMEM);
	}
	return dma;
}

void rust_perf_dma_free(struct rust_perf_dma *dma)
{
	if (dma->memory) {
		dma_free_coherent(dma->dev, dma->size, dma->memory, dma->address);
	} else {
		/* The framework has synchronised all that was published. */
		dma_unmap_sgtable(dma->dev, &dma->table, dma->direction,
				  DMA_ATTR_SKIP_CPU_SYNC);
		sg_free_table(&dma->table);
		put_pages(dma);
	}
	kfree(dma);
}

/* The address of the coherent memory; NULL for mapped pages. */
void *rust_perf_dma_memory(struct rust_perf_dma *dma)
{
	return dma->memory;
}

/*
 * Calls @each for all segments that the device sees, until it returns false.
 * None crosses the boundary that the device has: a list of pages is coalesced
 * without regard to it.
 */
void rust_perf_dma_for_each(struct rust_perf_dma *dma,
			    bool (*each)(void *data, u64 address, u64 len),
			    void *data)
{
	u64 boundary = dma_get_seg_boundary(dma->dev);
	struct scatterlist *sg;
	unsigned int i;

	if (dma->memory) {
		each(data, dma->address, dma->size);
		return;
	}
	for_each_sgtable_dma_sg(&dma->table, sg, i) {
		u64 address = sg_dma_address(sg);
		u64 left = sg_dma_len(sg);

		while (left) {
			u64 len = min(left - 1, boundary - (address & boundary)) + 1;

			if (!each(data, address, len))
				return;
			address += len;
			left -= len;
		}
	}
}

/*
 * On a coherent platform there is nothing to synchronise, as what swiotlb
 * bounces was refused. The API is not even called there: with
 * CONFIG_DMA_API_DEBUG it takes a spinlock, and the caller may hold raw ones.
 */
static bool needs_sync(struct rust_perf_dma *dma)
{
	return !dma->memory && !dev_is_dma_coherent(dma->dev);
}

/*
 * The whole list: the API has no way to synchronise a part of one. Any context.
 */
void rust_perf_dma_sync_for_cpu(struct rust_perf_dma *dma)
{
	if (needs_sync(dma))
		dma_sync_sgtable_for_cpu(dma->dev, &dma->table, dma->direction);
}

void rust_perf_dma_sync_for_device(struct rust_perf_dma *dma)
{
	if (needs_sync(dma))
		dma_sync_sgtable_for_device(dma->dev, &dma->table, dma->direction);
}
