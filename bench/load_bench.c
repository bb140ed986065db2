/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_bench.c - how fast are blocks loaded and saved?
 *
 * Each section has sides that take turns: yardsticks (fio, or a loop that
 * copies by hand) and the loader, in several ways. Who begins changes every
 * round; the first round is dropped. What is printed: both medians, the median
 * of the rounds' ratios and its quartiles. A ratio is loader / yardstick.
 *
 * It makes no blocks and starts no mount: load does that.
 */
#include <config.h>

#include "bench/load_bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/parse.h"

static const char usage_text[] =
	"usage: " ME " --section NAME --list FILE --tiers DIR [options]\n"
	"       " ME " --format <FILE.tsv     (a table of them)\n"
	"\n"
	"  --section NAME   direct, memory, single, submit, layers, shards, save,\n"
	"                   lent, pages or opens\n"
	"  --list FILE      the blocks, as mkblocks --list prints them\n"
	"  --tiers DIR      the directory where they lie\n"
	"  --mount DIR      a mount of it\n"
	"  --saves DIR      save: a tier without a daemon\n"
	"  --plain DIR      save: where fio writes; the same disk\n"
	"  --work DIR       for fio: links, results (.)\n"
	"  --huge           direct, save: a fio with huge pages, too\n"
	"  --depth N        blocks in flight, for direct and save (8)\n"
	"  --rounds N       that count (11)\n"
	"  --count N        most blocks to use (1024)\n"
	"  --label TEXT     first column\n"
	"  --tsv            for machines\n";

static const char head_line[] =
	"where\tsection\twork\tunit\tyardstick\tloader\tratio\tq1\tq3\ttarget\t";

/* ---- rounds ---- */

static int one_round(struct bench *bench, struct side *sides, unsigned num)
{
	for (unsigned i = 0; i < num; i++) {
		struct side *side = &sides[(i + bench->round) % num];
		struct figure figure = { 0 };
		int err;

		if (side->huge && !bench->huge)
			continue;
		err = side->run(bench, side, &figure);
		if (err && side->huge) { /* others have taken them */
			fprintf(stderr, ME ": continues without huge pages\n");
			bench->huge = false;
			continue;
		}
		if (err)
			return err;
		if (bench->round)
			side->figures[bench->round - 1] = figure;
	}
	return 0;
}

static bool has_loader(const struct side *side)
{
	return side->run == run_load || side->run == run_single ||
	       side->run == run_save || side->run == run_submit ||
	       side->run == run_shards;
}

static int measure(struct bench *bench, struct side *sides, unsigned num)
{
	int err = 0;

	for (unsigned i = 0; i < num && !err; i++) {
		if (has_loader(&sides[i]))
			err = side_open(bench, &sides[i]);
	}
	for (bench->round = 0; bench->round <= bench->rounds && !err;
	     bench->round++)
		err = one_round(bench, sides, num);
	for (unsigned i = 0; i < num; i++)
		side_close(&sides[i]);
	return err;
}

/* ---- the table ---- */

enum field { SECONDS, CPU, FIRST, OPENS, READS };

static double field_of(const struct figure *figure, enum field field)
{
	switch (field) {
	case SECONDS: return figure->seconds;
	case CPU: return figure->cpu;
	case FIRST: return figure->first;
	case OPENS: return figure->opens;
	case READS: break;
	}
	return figure->reads;
}

static double median_of(const struct bench *bench, const struct side *side,
			enum field field)
{
	double values[MAX_ROUNDS];

	for (unsigned i = 0; i < bench->rounds; i++)
		values[i] = field_of(&side->figures[i], field);
	return quantile(values, bench->rounds, 0.5);
}

static void print_row(const struct bench *bench, const char *work,
		      const char *unit, const char *there, const char *here,
		      double *ratios, const char *target, const char *verdict)
{
	char line[512], quartiles[64] = "-\t-\t-";

	if (ratios)
		snprintf(quartiles, sizeof(quartiles), "%.3f\t%.3f\t%.3f",
			 quantile(ratios, bench->rounds, 0.5),
			 quantile(ratios, bench->rounds, 0.25),
			 quantile(ratios, bench->rounds, 0.75));
	snprintf(line, sizeof(line), "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s",
		 bench->label, bench->section, work, unit, there, here,
		 quartiles, target, verdict);
	print_line(bench->tsv, line);
}

/* MB/s of both; least: the ratio that is asked for, 0: none. */
static void print_rate(const struct bench *bench, const struct side *yardstick,
		       const struct side *side, double least)
{
	double bytes = (double)(bench->num_files * bench->payload);
	char work[96], there[16], here[16], target[16] = "-";
	double ratios[MAX_ROUNDS];

	for (unsigned i = 0; i < bench->rounds; i++)
		ratios[i] = yardstick->figures[i].seconds /
			    side->figures[i].seconds;
	text_of(bytes / 1e6 / median_of(bench, yardstick, SECONDS), there);
	text_of(bytes / 1e6 / median_of(bench, side, SECONDS), here);
	if (least > 0)
		snprintf(target, sizeof(target), ">= %.2f", least);
	snprintf(work, sizeof(work), "%s / %s", side->name, yardstick->name);
	print_row(bench, work, "MB/s", there, here, ratios, target,
		  verdict_least(ratios, bench->rounds, least));
}

/* A quotient of two sides' figures in the same round, as per cent of most. */
static void print_share(const struct bench *bench, const char *work,
			const struct side *of, enum field of_field,
			const struct side *whole, double minus, double most)
{
	char here[16], target[16] = "-";
	double values[MAX_ROUNDS], median;

	for (unsigned i = 0; i < bench->rounds; i++)
		values[i] = 100 * (field_of(&of->figures[i], of_field) /
					   whole->figures[i].seconds -
				   minus);
	median = quantile(values, bench->rounds, 0.5);
	snprintf(here, sizeof(here), "%.1f", median);
	if (most > 0)
		snprintf(target, sizeof(target), "<= %g", most);
	print_row(bench, work, "%", "-", here, NULL, target,
		  verdict_most(values, bench->rounds, most));
}

/* Seconds of CPU for each GB; with copy: at most 1.5 times fio's and the copy's
 * own. Here the ratio is the more, the worse. */
static void print_cpu(const struct bench *bench, const struct side *fio,
		      const struct side *copy, const struct side *side)
{
	double gb = (double)(bench->num_files * bench->payload) / 1e9;
	double there = median_of(bench, fio, CPU) / gb;
	double here = median_of(bench, side, CPU) / gb;
	double own = copy ? median_of(bench, copy, CPU) / gb : 0;
	double most = 1.5 * there + own;
	char work[96], texts[2][16], target[24];
	double ratios[MAX_ROUNDS], values[MAX_ROUNDS];

	for (unsigned i = 0; i < bench->rounds; i++) {
		ratios[i] = side->figures[i].cpu / fio->figures[i].cpu;
		values[i] = side->figures[i].cpu / gb;
	}
	snprintf(work, sizeof(work), "%s / %s, CPU", side->name, fio->name);
	snprintf(texts[0], sizeof(texts[0]), "%.3f", there);
	snprintf(texts[1], sizeof(texts[1]), "%.3f", here);
	snprintf(target, sizeof(target), "<= %.3f", most);
	print_row(bench, work, "s/GB", texts[0], texts[1], ratios,
		  copy ? target : "-",
		  verdict_most(values, bench->rounds, copy ? most : 0));
}

/* ---- sections ---- */

/* Against fio as it is, and with the loader's means. */
static void print_rates(const struct bench *bench, const struct side *fio,
			const struct side *side, double least)
{
	print_rate(bench, &fio[0], side, least);
	if (bench->huge)
		print_rate(bench, &fio[1], side, least);
}

/* So few files are kept open that none is found in the next turn, and as many
 * as are read and opened ahead at a time. */
static unsigned few_files(const struct bench *bench)
{
	size_t few = bench->depth + 24;

	return (unsigned)(few < bench->num_files / 2 ? few
						      : bench->num_files / 2);
}

static int measure_direct(struct bench *bench)
{
	unsigned depth = (unsigned)bench->depth, few = few_files(bench);
	struct side sides[] = {
		{ .name = "fio", .run = run_fio_read, .depth = depth },
		{ .name = "fio, huge pages", .run = run_fio_read,
		  .depth = depth, .huge = true },
		{ .name = "copy, checksums", .run = run_copy },
		{ .name = "copy", .run = run_copy, .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, verify", .run = run_load, .depth = depth,
		  .open_files = few },
		{ .name = "tiers", .run = run_load, .depth = depth,
		  .open_files = few, .verify = UCM_VERIFY_NONE },
		{ .name = "mount, verify", .run = run_load, .depth = depth,
		  .open_files = few, .mount = true },
		{ .name = "mount", .run = run_load, .depth = depth,
		  .open_files = few, .mount = true, .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, verify, 1 thread", .run = run_load,
		  .depth = depth, .threads = 1, .open_files = few },
		{ .name = "tiers, verify, own window", .run = run_load,
		  .open_files = few },
	};
	int err = measure(bench, sides, 10);

	if (err)
		return err;
	for (unsigned i = 4; i < 10; i++)
		print_rates(bench, sides, &sides[i],
			    i == 4 || i == 6 ? 0.97 : 0);
	print_share(bench, "tiers: verify costs", &sides[4], SECONDS,
		    &sides[5], 1, 5);
	print_share(bench, "mount: verify costs", &sides[6], SECONDS,
		    &sides[7], 1, 5);
	for (unsigned i = 1; i < 10; i++) {
		bool verify = sides[i].verify == UCM_VERIFY_FULL;

		if (i > 1 || bench->huge)
			print_cpu(bench, &sides[0],
				  i < 4 ? NULL : &sides[verify ? 2 : 3],
				  &sides[i]);
	}
	return 0;
}

static int measure_memory(struct bench *bench)
{
	unsigned all = (unsigned)bench->num_files + 64, few = few_files(bench);
	struct side sides[] = {
		{ .name = "memcpy, mapped", .run = run_mapped },
		{ .name = "memcpy, open and map", .run = run_mapping },
		{ .name = "tiers, kept open", .run = run_load,
		  .open_files = all,
		  .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, kept open, 1 thread", .run = run_load,
		  .threads = 1,
		  .open_files = all, .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, kept open, verify", .run = run_load,
		  .open_files = all },
		{ .name = "tiers, kept open, verify, 1 thread", .run = run_load,
		  .threads = 1,
		  .open_files = all },
		{ .name = "tiers", .run = run_load, .open_files = few,
		  .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, 1 thread", .run = run_load, .threads = 1,
		  .open_files = few,
		  .verify = UCM_VERIFY_NONE },
		{ .name = "tiers, verify", .run = run_load, .open_files = few },
		{ .name = "tiers, verify, 1 thread", .run = run_load,
		  .threads = 1,
		  .open_files = few },
		{ .name = "mount", .run = run_load, .mount = true,
		  .open_files = few,
		  .verify = UCM_VERIFY_NONE },
		{ .name = "mount, verify", .run = run_load, .mount = true,
		  .open_files = few },
	};
	int err = measure(bench, sides, 12);

	if (err)
		return err;
	for (unsigned i = 2; i < 12; i++) {
		bool verify = sides[i].verify == UCM_VERIFY_FULL;

		print_rate(bench, &sides[0], &sides[i],
			   i >= 10 ? 0 : verify ? 0.60 : 0.90);
	}
	for (unsigned i = 6; i < 12; i++)
		print_rate(bench, &sides[1], &sides[i], 0);
	for (unsigned i = 2; i < 12; i++)
		print_cpu(bench, &sides[i < 6 ? 0 : 1], NULL, &sides[i]);
	return 0;
}

static int measure_single(struct bench *bench)
{
	struct side sides[] = {
		{ .name = "one request", .run = run_load },
		{ .name = "one a block", .run = run_single },
		{ .name = "one request, mount", .run = run_load,
		  .mount = true },
		{ .name = "one a block, mount", .run = run_single,
		  .mount = true },
	};
	int err = measure(bench, sides, 4);

	for (unsigned i = 0; i < 4 && !err; i += 2)
		print_rate(bench, &sides[i], &sides[i + 1], 0.90);
	return err;
}

static int measure_submit(struct bench *bench)
{
	struct side sides[] = {
		{ .name = "submit, 8192 blocks", .run = run_submit },
		{ .name = "submit, in layers", .run = run_submit,
		  .order = UCM_LOAD_LAYERS },
		{ .name = "submit, addresses", .run = run_submit,
		  .with_addresses = true },
	};
	int err = measure(bench, sides, 3);

	for (unsigned i = 0; i < 3 && !err; i++) {
		double ms[MAX_ROUNDS];
		char here[16];

		for (unsigned k = 0; k < bench->rounds; k++)
			ms[k] = 1e3 * sides[i].figures[k].seconds;
		text_of(quantile(ms, bench->rounds, 0.5), here);
		print_row(bench, sides[i].name, "ms", "-", here, NULL, "<= 10",
			  verdict_most(ms, bench->rounds, 10));
	}
	return err;
}

static int measure_layers(struct bench *bench)
{
	unsigned all = (unsigned)bench->num_files + 64;
	enum ucm_load_order layers = UCM_LOAD_LAYERS;
	struct side sides[] = {
		{ .name = "whole blocks", .run = run_load },
		{ .name = "chosen", .run = run_load, .order = layers },
		{ .name = "groups of 1", .run = run_load, .order = layers,
		  .group_layers = 1 },
		{ .name = "groups of 2", .run = run_load, .order = layers,
		  .group_layers = 2 },
		{ .name = "groups of 4", .run = run_load, .order = layers,
		  .group_layers = 4 },
		{ .name = "groups of 8", .run = run_load, .order = layers,
		  .group_layers = 8 },
		{ .name = "groups of 16", .run = run_load, .order = layers,
		  .group_layers = 16 },
		{ .name = "chosen, kept open", .run = run_load, .order = layers,
		  .open_files = all },
	};
	int err = measure(bench, sides, 8);

	for (unsigned i = 1; i < 8 && !err; i++) {
		char work[96];

		print_rate(bench, &sides[0], &sides[i],
			   i == 1 ? 1 / 1.15 : 0);
		snprintf(work, sizeof(work), "%s: layer 0", sides[i].name);
		print_share(bench, work, &sides[i], FIRST, &sides[i], 0,
			    i == 1 ? 10 : 0);
	}
	return err;
}

static void print_count(const struct bench *bench, const char *work,
			const struct side *whole, const struct side *side,
			enum field field)
{
	char there[16], here[16];

	snprintf(there, sizeof(there), "%.0f", median_of(bench, whole, field));
	snprintf(here, sizeof(here), "%.0f", median_of(bench, side, field));
	print_row(bench, work, "n", there, here, NULL, "-", "-");
}

static int measure_shards(struct bench *bench)
{
	unsigned few = few_files(bench);
	struct side sides[] = {
		{ .name = "whole blocks, by id", .run = run_shards,
		  .open_files = few },
		{ .name = "their shards", .run = run_shards, .open_files = few,
		  .shards = true },
	};
	int err = measure(bench, sides, 2);

	if (err)
		return err;
	print_rate(bench, &sides[0], &sides[1], 1 / 1.1);
	print_cpu(bench, &sides[0], NULL, &sides[1]);
	print_count(bench, "shards: opens", &sides[0], &sides[1], OPENS);
	print_count(bench, "shards: reads", &sides[0], &sides[1], READS);
	return 0;
}

/* One of the tiers at a time: two that write exclude each other. */
static int measure_saves(struct bench *bench, bool lent)
{
	unsigned depth = (unsigned)bench->depth;
	struct side sides[] = {
		{ .name = "fio write", .run = run_fio_write, .depth = depth },
		{ .name = "fio write, huge pages", .run = run_fio_write,
		  .depth = depth, .huge = true },
		{ .name = "copy, checksums", .run = run_copy },
		{ .name = "save, tiers", .run = run_save, .depth = depth,
		  .is_save = true, .lent = lent },
		{ .name = "save, mount", .run = run_save, .depth = depth,
		  .is_save = true, .mount = true, .lent = lent },
		{ .name = "save, mount, own depth", .run = run_save,
		  .is_save = true, .mount = true, .lent = lent },
	};
	int err = measure(bench, sides, 6);

	if (err)
		return err;
	for (unsigned i = 3; i < 6; i++)
		print_rates(bench, sides, &sides[i], 0.95);
	for (unsigned i = 3; i < 6; i++)
		print_cpu(bench, &sides[0], &sides[2], &sides[i]);
	return 0;
}

static int measure_save(struct bench *bench)
{
	return measure_saves(bench, false);
}

static int measure_lent(struct bench *bench)
{
	return measure_saves(bench, true);
}

static int measure_pages(struct bench *bench)
{
	struct side sides[] = {
		{ .name = "memcpy of pages", .run = run_gather },
		{ .name = "pages free, tiers, buffer", .run = run_save,
		  .is_save = true, .until_copied = true, .buffer = true },
		{ .name = "pages free, mount, buffer", .run = run_save,
		  .is_save = true, .until_copied = true, .buffer = true,
		  .mount = true },
		{ .name = "pages free, mount", .run = run_save,
		  .is_save = true, .until_copied = true, .mount = true },
	};
	int err = measure(bench, sides, 4);

	for (unsigned i = 1; i < 4 && !err; i++)
		print_rate(bench, &sides[0], &sides[i], i < 3 ? 0.90 : 0);
	return err;
}

/* Of the processor, more than where the files are open. */
static void print_open(const struct bench *bench, const char *work,
		       const struct side *open, const struct side *opened)
{
	double us = 1e6 *
		    (median_of(bench, opened, CPU) -
		     median_of(bench, open, CPU)) /
		    (double)bench->num_files;
	char here[16];

	text_of(us, here);
	print_row(bench, work, "us", "-", here, NULL, "-", "-");
}

static int measure_opens(struct bench *bench)
{
	unsigned all = (unsigned)bench->num_files + 64, few = few_files(bench);
	struct side sides[] = {
		{ .name = "tiers, kept open", .run = run_load,
		  .open_files = all },
		{ .name = "tiers, opened", .run = run_load, .open_files = few },
		{ .name = "mount, kept open", .run = run_load,
		  .open_files = all, .mount = true },
		{ .name = "mount, opened", .run = run_load, .open_files = few,
		  .mount = true },
	};
	int err = measure(bench, sides, 4);

	if (err)
		return err;
	print_rate(bench, &sides[0], &sides[1], 0);
	print_rate(bench, &sides[2], &sides[3], 0);
	print_rate(bench, &sides[1], &sides[3], 0.95);
	print_open(bench, "tiers, an open", &sides[0], &sides[1]);
	print_open(bench, "mount, an open", &sides[2], &sides[3]);
	print_open(bench, "mount, an open, over one of the tiers", &sides[1],
		   &sides[3]);
	return 0;
}

static const struct {
	const char *name;
	int (*measure)(struct bench *bench);
} sections[] = {
	{ "direct", measure_direct }, { "memory", measure_memory },
	{ "single", measure_single }, { "submit", measure_submit },
	{ "layers", measure_layers }, { "save", measure_save },
	{ "opens", measure_opens },   { "shards", measure_shards },
	{ "pages", measure_pages },   { "lent", measure_lent },
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int run_section(struct bench *bench)
{
	for (unsigned i = 0; i < LENGTH(sections); i++) {
		if (!strcmp(sections[i].name, bench->section))
			return sections[i].measure(bench);
	}
	fprintf(stderr, ME ": %s: no such section\n", bench->section);
	return -EINVAL;
}

/* ---- options ---- */

static const struct {
	const char *name;
	size_t at;
	uint64_t min, max;
} numbers[] = {
	{ "rounds", offsetof(struct bench, rounds), 1, MAX_ROUNDS },
	{ "count", offsetof(struct bench, count), 8, 1 << 20 },
	{ "depth", offsetof(struct bench, depth), 1, 256 },
};

static const struct {
	const char *name;
	size_t at;
} words[] = {
	{ "section", offsetof(struct bench, section) },
	{ "label", offsetof(struct bench, label) },
	{ "list", offsetof(struct bench, list) },
	{ "tiers", offsetof(struct bench, tiers) },
	{ "mount", offsetof(struct bench, mnt) },
	{ "saves", offsetof(struct bench, saves) },
	{ "plain", offsetof(struct bench, plain) },
	{ "work", offsetof(struct bench, work) },
};

static int set_option(struct bench *bench, const char *name, const char *value)
{
	for (unsigned i = 0; i < LENGTH(numbers); i++) {
		if (!strcmp(name, numbers[i].name))
			return ucm_parse_range(value, numbers[i].min,
					       numbers[i].max,
					       (uint64_t *)(void *)
					       ((char *)bench + numbers[i].at));
	}
	for (unsigned i = 0; i < LENGTH(words); i++) {
		if (!strcmp(name, words[i].name)) {
			memcpy((char *)bench + words[i].at, &value,
			       sizeof(value));
			return 0;
		}
	}
	return -ENOENT;
}

static int parse_arguments(struct bench *bench, char **arg)
{
	for (arg++; *arg; arg++) {
		if (!strcmp(*arg, "--tsv") || !strcmp(*arg, "--huge")) {
			*(arg[0][2] == 't' ? &bench->tsv : &bench->huge) = true;
			continue;
		}
		if (strncmp(*arg, "--", 2) || !arg[1] ||
		    set_option(bench, *arg + 2, arg[1]))
			return -EINVAL;
		arg++;
	}
	return bench->section && bench->list && bench->tiers ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
	struct bench bench = {
		.rounds = 11, .count = 1024, .depth = 8, .label = "-",
		.work = ".",
	};
	int err;

	if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--format"))
		return format_table(head_line);
	if (parse_arguments(&bench, argv)) {
		fputs(usage_text, stderr);
		return 2;
	}
	if (getrandom(&bench.random, sizeof(bench.random), 0) < 0)
		return 1;
	err = pages_open(&bench);
	if (!err)
		err = run_section(&bench);
	fio_close(&bench);
	pages_close(&bench);
	return err ? 1 : 0;
}
