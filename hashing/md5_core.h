/* SPDX-License-Identifier: Apache-2.0 */
/*
 * md5_core.h - MD5's compression function (RFC 1321), written once.
 *
 * Included once for each width. Before, define
 *   CORE_NAME    the function to make
 *   CORE_LANES   messages at a time
 *   CORE_VECTOR  a type of CORE_LANES 32-bit words: a vector, or uint32_t
 *   CORE_TARGET  function attributes
 *   CORE_LOAD(w, data, at)  16 words of each message, from byte at on
 *   CORE_KEEP(x) keeps the compiler from reordering the sums around x
 * Every lane compresses the same number of 64-byte blocks of its own message.
 *
 * The step is latency-bound: each needs the result of the one before. In the
 * second round the two halves of (d & b) | (~d & c) have no bit in common, so
 * they are added one by one: only d & b then waits for the step before.
 */

#define CORE_F(b, c, d) ((d) ^ ((b) & ((c) ^ (d))))
#define CORE_H(b, c, d) ((b) ^ ((c) ^ (d)))
#define CORE_I(b, c, d) ((c) ^ ((b) | ~(d)))
#define CORE_TURN(a, b, s) ((a) = ((a) << (s) | (a) >> (32 - (s))) + (b))

#define CORE_STEP(f, a, b, c, d, k, s, t)                                     \
	do {                                                                  \
		(a) += w[k] + (uint32_t)(t);                                  \
		CORE_KEEP(a);                                                 \
		(a) += f(b, c, d);                                            \
		CORE_TURN(a, b, s);                                           \
	} while (0)
#define CORE_STEP_G(a, b, c, d, k, s, t)                                      \
	do {                                                                  \
		(a) += w[k] + (uint32_t)(t);                                  \
		(a) += ~(d) & (c);                                            \
		CORE_KEEP(a);                                                 \
		(a) += (d) & (b);                                             \
		CORE_TURN(a, b, s);                                           \
	} while (0)

#define CORE_4F(k, t0, t1, t2, t3)                                            \
	do {                                                                  \
		CORE_STEP(CORE_F, a, b, c, d, (k), 7, t0);                    \
		CORE_STEP(CORE_F, d, a, b, c, (k) + 1, 12, t1);               \
		CORE_STEP(CORE_F, c, d, a, b, (k) + 2, 17, t2);               \
		CORE_STEP(CORE_F, b, c, d, a, (k) + 3, 22, t3);               \
	} while (0)
#define CORE_4G(k, t0, t1, t2, t3)                                            \
	do {                                                                  \
		CORE_STEP_G(a, b, c, d, (k) & 15, 5, t0);                     \
		CORE_STEP_G(d, a, b, c, ((k) + 5) & 15, 9, t1);               \
		CORE_STEP_G(c, d, a, b, ((k) + 10) & 15, 14, t2);             \
		CORE_STEP_G(b, c, d, a, ((k) + 15) & 15, 20, t3);             \
	} while (0)
#define CORE_4H(k, t0, t1, t2, t3)                                            \
	do {                                                                  \
		CORE_STEP(CORE_H, a, b, c, d, (k) & 15, 4, t0);               \
		CORE_STEP(CORE_H, d, a, b, c, ((k) + 3) & 15, 11, t1);        \
		CORE_STEP(CORE_H, c, d, a, b, ((k) + 6) & 15, 16, t2);        \
		CORE_STEP(CORE_H, b, c, d, a, ((k) + 9) & 15, 23, t3);        \
	} while (0)
#define CORE_4I(k, t0, t1, t2, t3)                                            \
	do {                                                                  \
		CORE_STEP(CORE_I, a, b, c, d, (k) & 15, 6, t0);               \
		CORE_STEP(CORE_I, d, a, b, c, ((k) + 7) & 15, 10, t1);        \
		CORE_STEP(CORE_I, c, d, a, b, ((k) + 14) & 15, 15, t2);       \
		CORE_STEP(CORE_I, b, c, d, a, ((k) + 21) & 15, 21, t3);       \
	} while (0)

/* state[i][lane] is word i of a lane's digest; data[lane] its message. */
CORE_TARGET
void CORE_NAME(uint32_t state[4][CORE_LANES],
	       const uint8_t *const data[CORE_LANES], size_t blocks)
{
	CORE_VECTOR a, b, c, d, a0, b0, c0, d0, w[16];

	memcpy(&a, state[0], sizeof(a));
	memcpy(&b, state[1], sizeof(b));
	memcpy(&c, state[2], sizeof(c));
	memcpy(&d, state[3], sizeof(d));
	for (size_t block = 0; block < blocks; block++) {
		CORE_LOAD(w, data, 64 * block);
		a0 = a;
		b0 = b;
		c0 = c;
		d0 = d;
		CORE_4F(0, 0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee);
		CORE_4F(4, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501);
		CORE_4F(8, 0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be);
		CORE_4F(12, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821);
		CORE_4G(1, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa);
		CORE_4G(5, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8);
		CORE_4G(9, 0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed);
		CORE_4G(13, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a);
		CORE_4H(5, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c);
		CORE_4H(1, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70);
		CORE_4H(13, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05);
		CORE_4H(9, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665);
		CORE_4I(0, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039);
		CORE_4I(12, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1);
		CORE_4I(8, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1);
		CORE_4I(4, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391);
		a += a0;
		b += b0;
		c += c0;
		d += d0;
	}
	memcpy(state[0], &a, sizeof(a));
	memcpy(state[1], &b, sizeof(b));
	memcpy(state[2], &c, sizeof(c));
	memcpy(state[3], &d, sizeof(d));
}

#undef CORE_NAME
#undef CORE_LANES
#undef CORE_VECTOR
#undef CORE_TARGET
#undef CORE_LOAD
#undef CORE_KEEP
