// SPDX-License-Identifier: GPL-2.0
/*
 * Memory to which a device writes trace: AUX pages that are mapped for DMA, and
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
	/* Either AUX pages. This holds a reference to each. */
	struct sg_table table;
	struct page **pages;
	unsigned int nr;
	/* Or coherent memory. */
	void *memory;
	dma_addr_t address;
	size_t size;
};

/*
 * Whether the device reaches a page without bouncing. If there is no IOMMU and
 * the DMA mask does not cover all memory, a page may lie beyond the mask.
 * dma_map_sgtable() would bounce such a page, or warn if there is no swiotlb.
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
 * Whether swiotlb bounces the mapping. If the device is coherent, only bounced
 * segments need synchronisation, so __dma_need_sync() detects them. If it is not,
 * all segments need it. Then this returns true if swiotlb might bounce any
 * mapping of the device.
 */
static bool bounced(struct rust_perf_dma *dma)
{
	struct scatterlist *sg;
	unsigned int i;

	if (!dev_is_dma_coherent(dma->dev))
		return dma_max_mapping_size(dma->dev) != SIZE_MAX;
	/* Not dma_dev_need_sync(): it is always true with CONFIG_DMA_API_DEBUG. */
	if (dev_dma_skip_sync(dma->dev))
		return false;
	/*
	 * __dma_need_sync() recognises swiotlb's memory only if there is no IOMMU.
	 * With an IOMMU, memory that is aligned to the IOMMU's pages is not bounced.
	 * All AUX pages are aligned unless the IOMMU's pages are larger.
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
 * Maps @nr AUX pages for the device. Fails with -EFAULT if the device does not
 * reach all of them without bouncing: each synchronisation would copy the bounce
 * buffer over bytes that software has written to the pages.
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

	/* A segment has at least a page, because perf's areas consist of pages. */
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
	/* Nothing in swiotlb's buffers may be copied to the pages. */
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

/* Allocates coherent memory, zeroed, on the device's node. */
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
		/* The framework has synchronised all bytes that it has committed. */
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
 * Calls @each for each segment that the device sees, until @each returns false.
 * It splits segments at the device's segment boundary, because the list of pages
 * was coalesced without regard to that boundary.
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
 * A coherent device needs no synchronisation, because rust_perf_dma_map() refuses
 * bounced pages. The DMA API must not even be called for it: with
 * CONFIG_DMA_API_DEBUG it takes a spinlock, and the caller may hold raw spinlocks.
 */
static bool needs_sync(struct rust_perf_dma *dma)
{
	return !dma->memory && !dev_is_dma_coherent(dma->dev);
}

/*
 * Synchronises the whole list: the API cannot synchronise a part of one. May be
 * called in any context.
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
