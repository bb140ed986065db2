/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - moves blocks between their files and an engine's paged KV tensors.
 *
 * A loader reads block files (by a daemon's socket, or in the tiers'
 * directories), verifies them and scatters them into pages; saving is the
 * other way. Everything is asynchronous: a submit returns a task, which is
 * polled or waited for and gives each block's outcome separately.
 *
 *	layout = which bytes of a page are which bytes of a block's payload
 *	group  = a layout and the space of its blocks, known to a loader
 *	task   = blocks and pages of one group that are moved together
 *
 * Nothing is ever reported as loaded whose bytes were not read, checked as
 * asked for, and copied. ucm_load(3) describes the library with an example.
 *
 * Calls return 0 or -errno; some say in words what was wrong (<ucm/error.h>).
 */
#ifndef UCM_LOAD_H
#define UCM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>
#include <ucm/sized.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layouts: pure, no file and no device is touched ---- */

#define UCM_PLANE_K 0
#define UCM_PLANE_V 1
#define UCM_PLANE_BOTH 2 /* the whole layer, K and then V */

/*
 * A piece of a layer and where it lies in every page. The page p of a region
 * has n1 * n0 runs; run (i1, i0) is
 *
 *	base + p * page_stride + i1 * s1 + i0 * s0,  run_bytes bytes
 *
 * and holds the payload's bytes from offset + (i1 * n0 + i0) * run_bytes on.
 * Strides are in bytes and may be negative.
 */
struct ucm_region {
	uint64_t base;       /* address of page 0: host's or device's */
	int64_t page_stride; /* from a page to the next one */
	uint64_t run_bytes;  /* bytes in a row, above 0 */
	uint32_t n0, n1;     /* repetitions, inner and outer; at least 1 */
	int64_t s0, s1;      /* from one repetition to the next */
	uint64_t offset;     /* in the payload of the block */
	uint32_t layer;
};

#define UCM_TENSOR_MAX_DIMS 8

/*
 * A tensor of an engine, by a letter for each dimension:
 *
 *	B  pages, or smaller blocks of the engine's kernels (see
 *	   kernel_blocks_per_page)
 *	L  layers
 *	P  planes: 2, K and then V
 *	N  tokens of a page
 *	H  heads
 *	D  elements of a head, or the latent of MLA
 *	C  as D, with K's elements first and V's after them: 2 x head_dim, or
 *	   in the proportion of k_bytes to v_bytes
 *
 * "BNHD" and "PBNHD", "BPNHD", "BHNC", "BND" (MLA), "BLNHC" and so on. Strides
 * say where the bytes lie; the order of the letters does not matter. B must be
 * there; D or C, and the others, where the tensor has them. N and H may be
 * missing, if the geometry's order is opaque (H also if there is one head): a
 * page of bytes is "BD", with elements of one byte.
 *
 * Where the geometry gives dtype, num_kv_heads or head_dim, item_bytes, H, D
 * and C must agree; head_dim is K's. Where v_bytes is 0 the whole tensor is one
 * plane: C may be head_dim as well, and P needs an opaque order. Layers of a
 * tensor with L are of one size.
 */
struct ucm_tensor {
	size_t size; /* sizeof(struct ucm_tensor) */
	const char *name; /* for messages */
	uint64_t data;    /* address of element 0; never 0 */
	const char *dims; /* a letter for each dimension */
	const int64_t *shape;
	const int64_t *strides;   /* in elements; may be negative, not 0; any
				   * where shape is 1 */
	uint32_t item_bytes;      /* of an element */
	uint32_t layer;           /* of the tensor, or of its first one (L) */
	uint32_t plane;           /* UCM_PLANE_* that it holds, if there is
				   * neither P nor C; K or BOTH where v_bytes
				   * is 0 */
	/* B counts blocks of the engine's kernels, of which so many in a row
	 * make a page; 0 and 1: B counts pages. */
	uint32_t kernel_blocks_per_page;
};

struct ucm_layout;

/*
 * A layout is made of a geometry and the number of pages, filled with tensors
 * or regions, and sealed. The order of bytes in a plane is the geometry's:
 * NHD, HND, or, where it is opaque, the order in memory (the dimension with the
 * largest stride outermost, addresses rising).
 *
 * Layers may differ in size: the geometry's are then the largest, and
 * ucm_layout_set_layer_bytes() says which have less. What belongs to a layer in
 * a cache of its own (the indexer's beside MLA's) may be its V plane.
 */
int ucm_layout_new(const struct ucm_geometry *geometry, uint64_t num_pages,
		   struct ucm_layout **out, struct ucm_error *error);
void ucm_layout_free(struct ucm_layout *layout); /* NULL is harmless */

/*
 * A layer has less than the geometry's planes, of which it takes the first
 * bytes; the rest is zero in files. Before tensors and regions are added.
 * -EINVAL: k_bytes is 0, or one of them more than the geometry's; or K is less,
 * and the geometry tells heads and head_dim, which hold for all layers; -ENOMEM.
 */
int ucm_layout_set_layer_bytes(struct ucm_layout *layout, uint32_t layer,
			       uint32_t k_bytes, uint32_t v_bytes,
			       struct ucm_error *error);

/* -EINVAL: a region outside the payload, or of more than one layer, or with
 * addresses that are not between 0 and 2^64 - 1. */
int ucm_layout_add_region(struct ucm_layout *layout,
			  const struct ucm_region *region,
			  struct ucm_error *error);

/* Derive the tensor's regions by collapsing the dimensions that are contiguous.
 * Where three repetitions are left, a plane becomes a region for each step of
 * the outermost. -EINVAL, and nothing is added: its shape does not fit the
 * geometry or the number of pages, more than three repetitions would be left,
 * or a plane would become more than 256 regions; error names tensor, shape and
 * strides. */
int ucm_layout_add_tensor(struct ucm_layout *layout,
			  const struct ucm_tensor *tensor,
			  struct ucm_error *error);

/* Check that the regions hold each byte of the payload exactly once, and that
 * no two runs of any pages overlap in memory. -EINVAL if not. */
int ucm_layout_seal(struct ucm_layout *layout, struct ucm_error *error);

/* Of a sealed layout, in the order of the payload. */
size_t ucm_layout_num_regions(const struct ucm_layout *layout);
const struct ucm_region *ucm_layout_regions(const struct ucm_layout *layout);
/* How many pieces in a row a block is in memory, at best. */
uint64_t ucm_layout_runs(const struct ucm_layout *layout);

/*
 * Let loads read into the pages themselves where they can, and saves write from
 * them, for pages that are one piece of memory each: less work, but a block is
 * checked when it is in its page already, and I/O that is under way has to be
 * waited for, by the task or by whoever owns the page (see lend in a request).
 * ucm_load(3)
 * says what it takes, and what else changes ("Reading into pages"). Before the
 * layout is added to loaders, which pin the memory of all pages until the group
 * is removed. -EINVAL: not sealed, or more than one piece.
 */
int ucm_layout_set_direct(struct ucm_layout *layout, struct ucm_error *error);

/* ---- the loader ---- */

enum ucm_copy_kind {
	UCM_COPY_HOST = 0, /* pages are memory of this process */
	UCM_COPY_CUDA = 1, /* pages are memory of a CUDA device */
};

enum ucm_io_kind {
	UCM_IO_AUTO = 0,    /* io_uring, or threads where it is refused */
	UCM_IO_URING = 1,   /* io_uring, or the open fails */
	UCM_IO_THREADS = 2, /* pread and pwrite by a pool of threads */
};

/* Zero is a default everywhere; set size to sizeof(struct). */
struct ucm_loader_options {
	size_t size;
	/* Where the blocks are: one of the two. Tiers may be new directories,
	 * which become tiers. */
	const char *mount; /* a mount point of ucmfs, or a daemon's socket */
	const char *tiers; /* the directories, as in SOURCE of ucmfs(8) */
	enum ucm_copy_kind copy;
	enum ucm_io_kind io;
	unsigned threads;       /* that read, verify and copy */
	uint64_t staging_bytes; /* memory between file and page, at most
				 * [256 MiB]. Saves wait with four times as
				 * many bytes; more are dropped, but of a
				 * request that finds none waiting. */
	unsigned open_files;    /* of loads, at a time; the last ones are kept
				 * open, for 10 s at most [256]; more while a
				 * request in the order of layers comes back
				 * to them */
	/* CUDA */
	int device;
	void *stream; /* CUstream that copies are ordered in, or
		       * UCM_STREAM_OWN; NULL: the default stream (legacy) */
	/* Saves copy their pages into memory of so many bytes before they are
	 * written: ucm_task_wait_copied() then ends at the speed of memory,
	 * while there is room. One for all loaders of the process: the first
	 * that asks for it says how large. 0: none. ucm_load(3), "The write
	 * buffer". */
	uint64_t write_buffer_bytes;
	/* Bytes that this loader begins to read and write in a second; 0: any. A
	 * mount may have a rate for all loaders of the node beside it, and a limit
	 * of what each has under way. ucm_load(3), "The budget". */
	uint64_t budget;
};

/*
 * As stream: one of the loader's threads' own, ordered with nobody else's. To have
 * copies ordered in PyTorch's current stream, pass
 * torch.cuda.current_stream().cuda_stream, which is 0 for the default stream.
 * CU_STREAM_PER_THREAD is refused: in the loader's threads it is another stream
 * than in the caller's.
 */
#define UCM_STREAM_OWN ((void *)UINTPTR_MAX)

struct ucm_loader;

int ucm_loader_open(const struct ucm_loader_options *options,
		    struct ucm_loader **out, struct ucm_error *error);

/* Its tasks must have been freed, and no other call be under way. Waits for I/O
 * that is still under way for tasks that ended before it (cancelled, or past
 * their deadlines): where a file server hangs for ever, so does this; calls to
 * directories of the tiers end at those directories' deadlines. Blocks that are
 * not whole are dropped. NULL is harmless. */
void ucm_loader_close(struct ucm_loader *loader);

/*
 * Tell a loader of a layout (which it copies) and of the space of its blocks
 * (NULL: the default one, MOUNT/blocks). A group lives until it is removed, or
 * the loader is closed. -ENOSPC: there are 256 at a time.
 */
int ucm_loader_add_group(struct ucm_loader *loader,
			 const struct ucm_layout *layout, const char *space,
			 unsigned *group_out, struct ucm_error *error);

/*
 * Remove a group: when it returns 0, no thread reads or writes its pages any
 * more, and they are not pinned: their memory may be freed. What was saved of
 * blocks that are not whole is dropped. Tasks that are done may be freed later.
 * Its number is not given to another group: from then on it is unknown.
 * -EINVAL: unknown. -EBUSY, and all is as before: a task of it is not done (or a
 * call on the group is under way), or I/O that came too late for a task that was
 * cancelled or overdue has not ended within a second.
 */
int ucm_loader_remove_group(struct ucm_loader *loader, unsigned group,
			    struct ucm_error *error);

/* Which of num blocks exist: found[i] is 1 or 0. -errno, with nothing found, if
 * that could not be learned. Blocks the caller. */
int ucm_loader_lookup(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, uint8_t *found);

/* How many of them exist, from the first on: up to the first that does not.
 * -errno if that could not be learned. Blocks the caller. */
int ucm_loader_prefix(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, size_t *count_out);

/*
 * Remove blocks, such as were found to be damaged: as long as they are there
 * nobody saves them anew. results[i]: 0, or -errno; -ENOENT: it is not
 * there. -EINVAL, with nothing removed: no such group. Blocks the caller.
 */
int ucm_loader_remove(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num, int32_t *results);

/*
 * A hint that blocks will be loaded soon: the mount copies those that lie in a slow
 * tier to the fastest one. Nobody waits for that, and the loads need not either.
 * Without a mount, or where the caller may not ask for that (ucm-serve(7)),
 * nothing happens. Hints of which there are too many at a time are forgotten.
 */
void ucm_loader_prefetch(struct ucm_loader *loader, unsigned group,
			 const struct ucm_id *ids, size_t num);

enum ucm_verify {
	UCM_VERIFY_FULL = 0, /* header, and each plane's checksum, if the block
			      * was written with checksums */
	UCM_VERIFY_HEADER,   /* header, its name, geometry and size */
	UCM_VERIFY_NONE,     /* as HEADER where the header is read in any case,
			      * else the file's size alone */
	UCM_VERIFY_ONCE,     /* as FULL, unless the mount knows that this very
			      * file was verified on this machine */
	UCM_VERIFY_ALWAYS = UCM_VERIFY_FULL,
};

enum ucm_load_order {
	UCM_LOAD_BLOCKS = 0, /* block after block, each as a whole */
	UCM_LOAD_LAYERS,     /* the first layers of all blocks first */
};

enum ucm_load_priority {
	UCM_LOAD_DEMAND = 0, /* somebody waits for it */
	UCM_LOAD_PREFETCH,   /* somebody may want it later */
};

/* What may become of a page that is read into when its task ends before the read
 * does; see ucm_layout_set_direct() and ucm_task_wait_returned(). */
enum ucm_load_lend {
	UCM_LEND_NEVER = 0, /* it does not come to that: with a deadline, reads
			     * go through staging memory, and a cancel waits */
	UCM_LEND_LOCAL,     /* it stays lent. With a deadline, pages are read
			     * into from local file systems, which do not hang;
			     * other reads go through staging memory */
	UCM_LEND_ALWAYS,    /* it stays lent. A deadline makes no difference */
};

struct ucm_task;
struct ucm_completions; /* see below */

struct ucm_move {
	struct ucm_id id;
	uint32_t page;
};

/* Zero is a default everywhere but in blocks; set size to sizeof(struct). */
struct ucm_request {
	size_t size;
	unsigned group;
	uint32_t first_layer;
	uint32_t num_layers; /* 0: all from first_layer on */
	const struct ucm_move *blocks; /* copied */
	size_t num_blocks;
	/* Instead of pages: for each block as many addresses as the layer range
	 * has regions, in their order; they take the place of
	 * base + page * page_stride. Copied. */
	const uint64_t *addresses;
	enum ucm_verify verify;       /* loads */
	enum ucm_load_order order;    /* loads */
	uint32_t group_layers;        /* LOAD_LAYERS: layers to a read; 0:
				       * chosen */
	const struct ucm_id *parents; /* saves: of each block (all zero: it has
				       * none), or NULL; what counts is the
				       * request that makes the block whole */
	uint32_t deadline_ms;         /* from submit; 0: none */
	/* Signalled once, when the task is done (a wait ends after on_done): */
	int eventfd;                  /* 1 is added to it; 0: none. With lend
				       * once more: keep it open until then */
	/* Runs in the loader's threads (without blocks: in the submit itself),
	 * and must not wait. Outcomes are final; ucm_task_done() and the waits
	 * say so only when it has returned. */
	void (*on_done)(void *arg, struct ucm_task *task);
	void *arg; /* of on_done, and ucm_task_arg() */
	/* Saves: 1: do not commit the blocks when they are whole, but keep them
	 * for ucm_save_commit(). */
	uint8_t hold;
	/* Saves: 1: the mount may refuse blocks that are not worth their
	 * writing (UCM_SERVE_OFFER of <ucm/serve.h>); the outcome says so.
	 * Blocks of a chain in their order. A loader without a mount saves
	 * all. */
	uint8_t may_refuse;
	/* Where the task is put when it is done (a wait may end before); NULL:
	 * nowhere. Lives longer than the task. */
	struct ucm_completions *completions;
	/* Loads: prefetch comes after demand, and gets a sixteenth of the bytes
	 * while that does not end. */
	enum ucm_load_priority priority;
	uint32_t unused; /* programs of before may have anything here */
	/* Loads: other than 0: a page is the caller's again when the task is
	 * done and the page is not lent, which is told apart. */
	enum ucm_load_lend lend;
	/* Saves with completions: the task is put there when its pages are free,
	 * too; it may not be done then. */
	uint8_t tell_copied;
	/* CUDA: the request begins when this event (a CUevent that has been
	 * recorded) has completed; NULL: at once. It must live, and not be
	 * recorded again, until the task is done. ucm_load(3), "Order on a
	 * device". */
	void *after;
};

/*
 * Load blocks into pages. Pages must not be used by others until the task is
 * done and none is lent (or the layer is, see ucm_task_wait_layer). Loads go
 * before saves, which get an eighth of the bytes while loads do not end, and
 * among themselves by their priority, then in the order of their submission.
 * -EINVAL with nothing started: unknown group, layer or page; -ENOMEM.
 */
int ucm_load_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error);

/*
 * Save pages as blocks. Pages must keep their content until the task is done,
 * or ucm_task_wait_copied() says that it has been taken; with a write buffer
 * that is soon. The task is done when its blocks are committed. A block that
 * exists is skipped; one for which too much waits to be saved (see staging_bytes)
 * is dropped (-ENOBUFS). With a range of layers a block is committed once all its layers
 * have been saved by tasks of this loader; see ucm_save_abandon().
 */
int ucm_save_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error);

/*
 * Commit blocks that were saved with hold. Of the request the group, the ids,
 * parents, the deadline and how the end is signalled are used. Outcomes: 0;
 * -EAGAIN: not all layers are saved, the rest may follow; -ENOENT: nothing is
 * kept of the block, because nothing was saved or because that has failed.
 * Saves that were submitted before are waited for.
 */
int ucm_save_commit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error);

/* Forget what was saved of blocks that are not committed yet; ids NULL: of all.
 * What tasks that were submitted before save of them, now or later, is forgotten
 * when they are done with it, unless it is whole then. Tasks that are submitted
 * afterwards begin anew. */
void ucm_save_abandon(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num);

/* How a block fared. */
struct ucm_outcome {
	/*
	 * 0: loaded, or saved. -EINPROGRESS until then; -ENOENT: absent;
	 * -EBADMSG: no block, torn or damaged: see fault and plane; -ECANCELED;
	 * -ETIMEDOUT; -ENOBUFS: save dropped; -ENOSPC, -EIO and others: what
	 * the file system said.
	 */
	int err;
	uint16_t fault;   /* enum ucm_fault */
	uint8_t skipped;  /* save: the block was there */
	uint8_t refused;  /* save: the mount did not want it, and it was not
			   * written; only of a request that said so */
	uint32_t plane;   /* with UCM_FAULT_PLANE: 2 * layer, + 1 for V */
};

/* "layer 2 V: plane checksum differs" and the like. */
void ucm_outcome_text(const struct ucm_outcome *outcome, char *text,
		      size_t len);

/* Calls on a task: from any thread. */
bool ucm_task_done(const struct ucm_task *task);

/*
 * Wait; timeout_ms < 0 is for ever. 0: done, every block well; -EIO: done, and
 * some block failed; -ETIMEDOUT: not done yet, the task continues.
 */
int ucm_task_wait(struct ucm_task *task, int timeout_ms);

/* The same for a layer of a load: its bytes are in the pages of all blocks
 * that have not failed. -EINVAL: not a layer of the task. */
int ucm_task_wait_layer(struct ucm_task *task, uint32_t layer, int timeout_ms);

/*
 * CUDA: wait until the copies of that layer (UCM_ALL_LAYERS: of all of the task's)
 * are queued on the device, and make a stream (a CUstream; NULL: the default one)
 * wait for them there. What is queued in the stream afterwards finds the layer in
 * the pages of all blocks that have not failed. 0, and -EIO: a block has failed
 * (the stream waits for the others); -ETIMEDOUT, and the stream does not wait;
 * -EINVAL: not a layer of the task, a save, or pages of the host; -EBUSY: one of
 * the streams is being captured; -ENODEV: the device or its driver has failed.
 */
#define UCM_ALL_LAYERS UINT32_MAX
int ucm_task_wait_stream(struct ucm_task *task, uint32_t layer, void *stream,
			 int timeout_ms);

/* As ucm_task_wait() for a save: all pages have been read, or will not be. */
int ucm_task_wait_copied(struct ucm_task *task, int timeout_ms);

/*
 * The same for a load whose request said lend: done, and all pages are the
 * caller's again. At a deadline or a cancel it is done, and its outcomes are
 * final, while reads into its pages may be under way: such pages are lent, and
 * may be written to, until these have ended. If there were any when it was done,
 * the end of the last one is told as the end of the task was: by the eventfd, and
 * in completions, unless it has not been taken out of there since.
 */
int ucm_task_wait_returned(struct ucm_task *task, int timeout_ms);

/* How many blocks of a task that is done have pages that are still lent, and
 * whether that block has. 0 and false for a request without lend. */
size_t ucm_task_num_lent(const struct ucm_task *task);
bool ucm_task_is_lent(const struct ucm_task *task, size_t block);

/* What is not done yet ends with -ECANCELED, soon; wait for it. Pages are not
 * written to any more once the task is done, and none is lent. */
void ucm_task_cancel(struct ucm_task *task);

/* One for each block, in the order of the request. Final once the task is
 * done; before that only those whose err is not -EINPROGRESS. Then read err
 * first and atomically: __atomic_load_n(&outcome->err, __ATOMIC_ACQUIRE). */
const struct ucm_outcome *ucm_task_outcomes(const struct ucm_task *task);
size_t ucm_task_num_failed(const struct ucm_task *task);

/* Cancels and waits, if it is not done or pages are lent. NULL is harmless. Not
 * in on_done. */
void ucm_task_free(struct ucm_task *task);

/* What the request said. */
void *ucm_task_arg(const struct ucm_task *task);

/*
 * Tasks that are done, of any loaders, whose requests named the queue: one call
 * tells of all that have ended since the last one, in the order in which they
 * did. A task that is freed leaves the queue by itself.
 *
 * With lend or tell_copied a task may be put there twice, and the second time
 * while somebody has just taken it out: then one thread alone takes and frees
 * such tasks, or another one may be given a task that has been freed.
 */
int ucm_completions_new(struct ucm_completions **out); /* -errno */

/* The tasks that name it have been freed. NULL is harmless. */
void ucm_completions_free(struct ucm_completions *queue);

/* A descriptor that is readable while the queue has tasks, to be polled. It is
 * the queue's: not to be read or closed. */
int ucm_completions_fd(const struct ucm_completions *queue);

/* Take tasks out, at most so many; how many there were. Where there is none,
 * wait for one: timeout_ms 0: not at all, < 0: for ever. Any thread. */
size_t ucm_completions_take(struct ucm_completions *queue,
			    struct ucm_task **tasks, size_t most,
			    int timeout_ms);

/* Counters since the loader was opened. */
struct ucm_loader_stats {
	uint64_t loads;        /* blocks loaded */
	uint64_t load_bytes;   /* into pages */
	uint64_t load_absent;  /* blocks that were not there */
	uint64_t load_damaged; /* -EBADMSG */
	uint64_t load_failed;  /* for other causes */
	uint64_t saves;        /* blocks committed */
	uint64_t save_bytes;   /* from pages */
	uint64_t save_skipped; /* they existed */
	uint64_t save_dropped; /* too much waited */
	uint64_t save_failed;
	uint64_t reads;        /* requests to the file system */
	uint64_t short_reads;  /* resubmitted */
	uint64_t opens;        /* files opened */
	uint64_t open_hits;    /* files found open */
	uint64_t mapped_bytes; /* of load_bytes: of memory tiers,
				 * not through the ring */
	uint64_t window_bytes; /* reads in flight allowed at present */
	uint64_t direct_bytes; /* of load_bytes: read into the page itself */
	uint64_t save_refused; /* the mount did not want them */
	uint64_t save_buffered_bytes; /* copied into the write buffer */
	uint64_t load_buffered_bytes; /* of load_bytes: copied from there */
	uint64_t save_direct_bytes; /* written from the page itself */
	uint64_t unsummed_bytes; /* of load_bytes: verified before, of
				  * UCM_VERIFY_ONCE */
};

/* size: of *out; later versions know more at its end. */
void ucm_loader_get_stats(struct ucm_loader *loader,
			  struct ucm_loader_stats *out, size_t size);

/* "host, io_uring, 2 threads, 4 of 256 MiB staging (huge pages), ..." */
void ucm_loader_describe(struct ucm_loader *loader, char *text, size_t len);

#ifdef __cplusplus
}
#endif

#endif
