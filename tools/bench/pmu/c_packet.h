/* SPDX-License-Identifier: GPL-2.0 */
/* The packets of samples/pattern/codec. */
#ifndef C_PACKET_H
#define C_PACKET_H

#include <linux/types.h>
#include <asm/byteorder.h>

/* Packets are made and written in blocks of this size. */
#define C_PACKET_UNIT		64
#define C_PACKET_WORDS		(C_PACKET_UNIT / sizeof(u64))

#define C_PACKET_MAGIC		0x4e525450	/* "PTRN" */
#define C_PACKET_VERSION	1
#define C_PACKET_DATA		1
#define C_PACKET_HEADER_WORDS	5

struct c_packet {
	/* Position of its first byte in the stream. */
	u64 pos;
	u64 time;
	u32 stream;
	/* Number of the event's transaction in which it is written, from 0 on. */
	u32 run;
	u16 len;
	u16 cpu;
	u16 seed;
};

/* The finaliser of splitmix64. */
static inline u64 c_packet_mix(u64 word)
{
	word += 0x9e3779b97f4a7c15ULL;
	word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ULL;
	word = (word ^ word >> 27) * 0x94d049bb133111ebULL;
	return word ^ word >> 31;
}

static inline void c_packet_header(const struct c_packet *packet, __le64 *block)
{
	u64 words[C_PACKET_HEADER_WORDS] = {
		C_PACKET_MAGIC | (u64)packet->len << 32 | (u64)C_PACKET_DATA << 48 |
			(u64)C_PACKET_VERSION << 56,
		packet->pos,
		packet->time,
		packet->stream | (u64)packet->cpu << 32 | (u64)packet->seed << 48,
		packet->run,
	};
	u64 sum = 0;
	int i;

	for (i = 0; i < C_PACKET_HEADER_WORDS; i++)
		sum = c_packet_mix(sum ^ words[i]);
	words[C_PACKET_HEADER_WORDS - 1] |= sum << 32;
	for (i = 0; i < C_PACKET_HEADER_WORDS; i++)
		block[i] = cpu_to_le64(words[i]);
}

/* The block at byte @at of the packet. */
static inline void c_packet_block(const struct c_packet *packet, unsigned int at, __le64 *block)
{
	u64 key = (u64)packet->seed << 48 ^ (u64)packet->stream << 16;
	int i = 0;

	if (!at) {
		c_packet_header(packet, block);
		i = C_PACKET_HEADER_WORDS;
	}
	for (; i < C_PACKET_WORDS; i++)
		block[i] = cpu_to_le64(c_packet_mix(key ^ (packet->pos + at + i * sizeof(u64))));
}

#endif /* C_PACKET_H */
