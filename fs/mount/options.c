/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the table of options, and what reads it; see options.h. */
#include <config.h>

#include "fs/mount/options.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/parse.h"
#include "fs/watch/trace.h"

enum kind {
	STORE,  /* ucm_config_set() knows it */
	SWITCH, /* auto, on, off */
	NUMBER,
	OWNER,  /* a number that may be left out */
	LOG,
	LEVEL,
	AREAS,  /* what is debugged */
	TEXT,   /* a string of our own */
	BYTES,
	LIMIT,  /* of bytes; 0: none */
	FLAG,   /* no value; also handed to libfuse */
	FILE_,  /* the configuration file */
	PASS,   /* for libfuse or the kernel */
	IGNORE, /* for mount(8) and its friends */
};

struct option_row {
	const char *name; /* one ending in '-' stands for all that begin so */
	const char *arg;  /* NULL: takes no value */
	enum kind kind;
	size_t offset; /* in struct ucm_options */
	unsigned max;  /* of a number */
	const char *help;
};

#define AT(field) offsetof(struct ucm_options, field)

static const struct option_row rows[] = {
	{ "config", "FILE", FILE_, 0, 0, "read settings from a YAML file; options given here win" },
	{ "durability", "WHEN", STORE, 0, 0, "none (default), data or full: what a commit syncs" },
	{ "checkpoint", "SECONDS", STORE, 0, 0, "between two syncfs after commits [30]; 0: never" },
	{ "placement", "POLICY", STORE, 0, 0, "rendezvous (default), round_robin or random: directory in a tier" },
	{ "limit", "[TIER:]SIZE", STORE, 0, 0, "most that a tier's blocks and files may take: 500G, 80%; once per tier" },
	{ "policy", "NAME", STORE, 0, 0, "which block goes when room is needed: hazard (default), lru; none: nothing goes" },
	{ "high", "PERCENT", STORE, 0, 0, "of a limit: blocks begin to move down or go [95]" },
	{ "low", "PERCENT", STORE, 0, 0, "of a limit: so far they do [90]" },
	{ "reserve", "SIZE", STORE, 0, 0, "free space to leave to others on each file system: 20G, 5% [0]" },
	{ "promote", "N", STORE, 0, 0, "copy a block to the fastest tier at its N-th use within an hour [2]; now, never" },
	{ "write", "TIER:MODE", STORE, 0, 0, "new blocks of a tier stay (default), are copied below soon (back; memory's default), at once (through), or go below (around); once per tier" },
	{ "endurance", "TIER:BYTES", STORE, 0, 0, "that may be written to a tier in a day, by what can be left out [any]; once per tier" },
	{ "movers", "N", STORE, 0, 0, "threads that move blocks [2]" },
	{ "move_rate", "SIZE", STORE, 0, 0, "bytes a second that they copy, at most [0: any]" },
	{ "space_quota", "SIZE", STORE, 0, 0, "most that the blocks of a space in spaces/ may take that has no quota of its own [0: any]" },
	{ "block_max", "SIZE", STORE, 0, 0, "refuse larger blocks, and geometries with larger blocks [1G]" },
	{ "spaces", "N", STORE, 0, 0, "most spaces that one user other than root may make during a mount [8192]" },
	{ "readonly", "TIER", STORE, 0, 0, "never write to this tier; once per tier" },
	{ "staging_age", "SECONDS", STORE, 0, 0, "remove staging files untouched for so long [3600]" },
	{ "deadline", "SECONDS", STORE, 0, 0, "take a directory as gone that does not answer for so long [network file systems: 30, others: 0, never]" },
	{ "files", "DIR", TEXT, AT(files), 0, "the directory of SOURCE that has files/ [the first on disk that is not read-only]" },
	{ "passthrough", "WHEN", SWITCH, AT(passthrough), 0, "auto (default), on or off: let the kernel read and write the files itself" },
	{ "io_uring", "WHEN", SWITCH, AT(io_uring), 0, "off (default), on or auto: FUSE requests over io_uring; a directory that hangs then holds up others" },
	{ "threads", "N", NUMBER, AT(threads), 1024, "threads that answer requests [10]; as many, at most 4, fill the index" },
	{ "entry_timeout", "SECONDS", NUMBER, AT(entry_timeout_s), 31536000, "how long the kernel may remember a committed block [3600]" },
	{ "keep_open", "N", NUMBER, AT(keep_open), 1 << 20, "most blocks whose files stay open for some seconds after they are closed [4096]; 0: none" },
	{ "budget", "SIZE", LIMIT, AT(budget), 0, "bytes a second that all loaders of the node together may read and write [0: any]" },
	{ "inflight", "SIZE", LIMIT, AT(inflight), 0, "bytes that they may have under way [0: any]" },
	{ "reverify", "SECONDS", STORE, 0, 0, "how long a block that a loader has verified counts as verified, for loaders with verify=once [86400]; 0: they verify each load" },
	{ "ready-fd", "N", NUMBER, AT(ready_fd), 65535, "write READY=1 to this descriptor when the mount answers" },
	{ "uid", "N", OWNER, AT(uid), 0, "owner of blocks/ [who runs ucmfs]" },
	{ "gid", "N", OWNER, AT(gid), 0, "group of blocks/ [who runs ucmfs]" },
	{ "log", "WHERE", LOG, 0, 0, "stderr (default with -f), syslog (default without) or a file: /PATH" },
	{ "log_level", "LEVEL", LEVEL, 0, 0, "error, warning, info (default) or debug" },
	{ "debug", "AREA=DEPTH", AREAS, 0, 0, "debug these areas, with ':' between them; see ucm trace debug" },
	{ "trace", "FILE", TEXT, AT(trace), 0, "record who uses which block in FILE; see ucm-trace(5)" },
	{ "trace_size", "SIZE", BYTES, AT(trace_size), 0, "of the trace's ring [64M]" },
	{ "allow_other", NULL, FLAG, AT(allow_other), 0, "let other users use the mount" },
	{ "allow_root", NULL, PASS, 0, 0, "let root use a user's mount" },
	{ "auto_unmount", NULL, PASS, 0, 0, "have fusermount3 unmount when ucmfs dies" },
	{ "ro", NULL, PASS, 0, 0, "mount read-only" },
	{ "noexec", NULL, PASS, 0, 0, "no programs are run from the mount" },
	{ "exec", NULL, IGNORE, 0, 0, NULL },
	{ "noatime", NULL, PASS, 0, 0, "do not update access times" },
	{ "nodiratime", NULL, PASS, 0, 0, "do not update directories' access times" },
	{ "sync", NULL, PASS, 0, 0, "as for mount(8)" },
	{ "dirsync", NULL, PASS, 0, 0, "as for mount(8)" },
	{ "rw", NULL, IGNORE, 0, 0, NULL },
	{ "nosuid", NULL, IGNORE, 0, 0, NULL }, /* always on */
	{ "nodev", NULL, IGNORE, 0, 0, NULL },
	{ "suid", NULL, IGNORE, 0, 0, NULL },
	{ "dev", NULL, IGNORE, 0, 0, NULL },
	{ "async", NULL, IGNORE, 0, 0, NULL },
	{ "atime", NULL, IGNORE, 0, 0, NULL },
	{ "relatime", NULL, IGNORE, 0, 0, NULL },
	{ "default_permissions", NULL, IGNORE, 0, 0, NULL }, /* always on */
	{ "defaults", NULL, IGNORE, 0, 0, NULL },
	{ "auto", NULL, IGNORE, 0, 0, NULL },
	{ "noauto", NULL, IGNORE, 0, 0, NULL },
	{ "user", NULL, IGNORE, 0, 0, NULL },
	{ "nouser", NULL, IGNORE, 0, 0, NULL },
	{ "users", NULL, IGNORE, 0, 0, NULL },
	{ "nofail", NULL, IGNORE, 0, 0, NULL },
	{ "_netdev", NULL, IGNORE, 0, 0, NULL },
	{ "x-", NULL, IGNORE, 0, 0, NULL },
	{ "comment", "TEXT", IGNORE, 0, 0, NULL },
};
#define NUM_ROWS (sizeof(rows) / sizeof(rows[0]))

static const char *const switches[] = { "auto", "on", "off" };

void ucm_options_init(struct ucm_options *options)
{
	*options = (struct ucm_options){
		.threads = 10,
		.entry_timeout_s = 3600,
		.keep_open = 4096,
		.io_uring = UCM_OFF,
		.ready_fd = -1,
		.log_level = UCM_LOG_INFO,
		.trace_size = 64 << 20,
	};
	ucm_config_init(&options->config);
}

void ucm_options_fini(struct ucm_options *options)
{
	ucm_config_fini(&options->config);
	free(options->pass);
	free(options->log_file);
	free(options->trace);
	free(options->files);
}

static const struct option_row *find_row(const char *name)
{
	for (size_t i = 0; i < NUM_ROWS; i++) {
		size_t len = strlen(rows[i].name);

		if (rows[i].name[len - 1] == '-' &&
		    !strncmp(name, rows[i].name, len))
			return &rows[i];
		if (!strcmp(name, rows[i].name))
			return &rows[i];
	}
	return NULL;
}

static int find_word(const char *const *words, int num, const char *word)
{
	for (int i = 0; i < num; i++) {
		if (!strcmp(words[i], word))
			return i;
	}
	return -1;
}

static int set_switch(const struct option_row *row, const char *value,
		      enum ucm_switch *out, struct ucm_error *error)
{
	int i = find_word(switches, 3, value);

	if (i < 0)
		return ucm_error_set(error, -EINVAL, "%s '%s': auto, on or off",
				     row->name, value);
	*out = (enum ucm_switch)i;
	return 0;
}

static uint64_t least_of(const struct option_row *row)
{
	if (row->kind != NUMBER)
		return 0;
	return row->offset == AT(threads);
}

static int set_number(const struct option_row *row, const char *value,
		      unsigned *out, struct ucm_error *error)
{
	uint64_t min = least_of(row);
	uint64_t max = row->max ? row->max : UINT32_MAX - 1;
	uint64_t number;

	if (ucm_parse_range(value, min, max, &number))
		return ucm_error_set(error, -EINVAL,
				     "%s '%s': a number from %llu to %llu",
				     row->name, value, (unsigned long long)min,
				     (unsigned long long)max);
	*out = (unsigned)number;
	return 0;
}

static int set_log(struct ucm_options *options, const char *value,
		   struct ucm_error *error)
{
	char *file = NULL;

	if (!strcmp(value, "stderr")) {
		options->log = UCM_LOG_TO_STDERR;
	} else if (!strcmp(value, "syslog")) {
		options->log = UCM_LOG_TO_SYSLOG;
	} else if (value[0] == '/') { /* the background has another folder */
		file = strdup(value);
		if (!file)
			return -ENOMEM;
		options->log = UCM_LOG_TO_FILE;
	} else {
		return ucm_error_set(error, -EINVAL,
				     "log '%s': stderr, syslog or /PATH",
				     value);
	}
	free(options->log_file);
	options->log_file = file;
	return 0;
}

static int set_level(struct ucm_options *options, const char *value,
		     struct ucm_error *error)
{
	int i = find_word(ucm_log_level_names, UCM_LOG_LEVELS, value);

	if (i < 0)
		return ucm_error_set(
			error, -EINVAL,
			"log_level '%s': error, warning, info or debug", value);
	options->log_level = (enum ucm_log_level)i;
	return 0;
}

static int set_areas(const char *value, struct ucm_error *error)
{
	struct ucm_error why;
	int err = ucm_log_areas_set(value, &why);

	return err ? ucm_error_set(error, err, "debug: %s", why.text) : 0;
}

static int set_text(const char *value, char **out)
{
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	free(*out);
	*out = copy;
	return 0;
}

static int set_bytes(const struct option_row *row, const char *value,
		     uint64_t *out, struct ucm_error *error)
{
	uint64_t bytes;

	if (ucm_parse_bytes(value, &bytes) || bytes < UCM_TRACE_SIZE_MIN ||
	    bytes > UCM_TRACE_SIZE_MAX)
		return ucm_error_set(error, -EINVAL, "%s '%s': from 64K to 1T",
				     row->name, value);
	*out = bytes;
	return 0;
}

#define LIMIT_MIN (UINT64_C(1) << 16)
#define LIMIT_MAX (UINT64_C(1) << 44)

static int set_limit(const struct option_row *row, const char *value,
		     uint64_t *out, struct ucm_error *error)
{
	uint64_t bytes;

	if (ucm_parse_bytes(value, &bytes) || bytes > LIMIT_MAX ||
	    (bytes && bytes < LIMIT_MIN))
		return ucm_error_set(error, -EINVAL,
				     "%s '%s': 0, or from 64K to 16T",
				     row->name, value);
	*out = bytes;
	return 0;
}

static int pass_on(struct ucm_options *options, const char *name)
{
	char *pass;

	if (asprintf(&pass, "%s,%s", options->pass ? options->pass : "",
		     name) < 0)
		return -ENOMEM;
	free(options->pass);
	options->pass = pass;
	return 0;
}

static int apply(struct ucm_options *options, const struct option_row *row,
		 const char *value, struct ucm_error *error)
{
	void *field = (char *)options + row->offset;

	switch (row->kind) {
	case STORE:
		return ucm_config_set(&options->config, row->name, value,
				      error);
	case SWITCH:
		return set_switch(row, value, field, error);
	case NUMBER:
		return set_number(row, value, field, error);
	case OWNER:
		*(row->offset == AT(uid) ? &options->has_uid
					 : &options->has_gid) = true;
		return set_number(row, value, field, error);
	case LOG:
		return set_log(options, value, error);
	case LEVEL:
		return set_level(options, value, error);
	case AREAS:
		return set_areas(value, error);
	case TEXT:
		return set_text(value, field);
	case BYTES:
		return set_bytes(row, value, field, error);
	case LIMIT:
		return set_limit(row, value, field, error);
	case FLAG:
		*(bool *)field = true;
		return pass_on(options, row->name);
	case PASS:
		return pass_on(options, row->name);
	case FILE_:
	case IGNORE:
		break;
	}
	return 0;
}

/* From the command line: "name" or "name=value". */
static int set_option(struct ucm_options *options, char *text,
		      struct ucm_error *error)
{
	char *value = strchr(text, '=');
	const struct option_row *row;

	if (value)
		*value++ = '\0';
	row = find_row(text);
	if (!row)
		return ucm_error_set(error, -EINVAL, "unknown option '%.200s'",
				     text);
	if (row->arg && !value)
		return ucm_error_set(error, -EINVAL,
				     "option %s needs a value: %s=%s", text,
				     text, row->arg);
	if (!row->arg && value && row->kind != IGNORE)
		return ucm_error_set(error, -EINVAL, "option %s takes no value",
				     text);
	return apply(options, row, value, error);
}

/* From the configuration file: the same names; flags are true or false. */
static int set_from_file(void *arg, const char *key, const char *value,
			 struct ucm_error *error)
{
	const struct option_row *row = find_row(key);
	bool on;

	if (!row || row->kind == FILE_ || row->kind == IGNORE ||
	    row->offset == AT(ready_fd))
		return -ENOENT;
	if (row->arg)
		return apply(arg, row, value, error);
	if (ucm_parse_bool(value, &on))
		return ucm_error_set(error, -EINVAL, "%s '%s': true or false",
				     key, value);
	return on ? apply(arg, row, NULL, error) : 0;
}

/* Cut the next option off a list: at a comma that no backslash protects. */
static char *next_option(char **list)
{
	char *from = *list, *to = *list, *start = *list;

	if (!from)
		return NULL;
	while (*from && *from != ',') {
		if (*from == '\\' && from[1])
			from++;
		*to++ = *from++;
	}
	*list = *from ? from + 1 : NULL;
	*to = '\0';
	return start;
}

typedef int (*each_fn)(struct ucm_options *options, char *text,
		       struct ucm_error *error);

static int each_option(struct ucm_options *options, const char *list,
		       each_fn fn, struct ucm_error *error)
{
	char *copy = strdup(list), *rest = copy, *text;
	int err = copy ? 0 : -ENOMEM;

	while (!err && (text = next_option(&rest))) {
		if (*text)
			err = fn(options, text, error);
	}
	free(copy);
	return err;
}

static int read_config(struct ucm_options *options, char *text,
		       struct ucm_error *error)
{
	if (strncmp(text, "config=", 7))
		return 0;
	return ucm_config_read(&options->config, text + 7, set_from_file,
			       options, error);
}

static int take_flags(struct ucm_options *options, int argc, char **argv,
		      const char **lists, struct ucm_error *error)
{
	static const struct option longs[] = {
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int flag, num = 0;

	optind = 0;
	opterr = 0;
	/* n, s, v, t: what mount(8) hands its helpers */
	while ((flag = getopt_long(argc, argv, ":fdo:hVnsvt:", longs, NULL)) !=
	       -1) {
		switch (flag) {
		case 'f': options->foreground = true; break;
		case 'd': options->debug = options->foreground = true; break;
		case 'o': lists[num++] = optarg; break;
		case 'h': options->show_help = true; break;
		case 'V': options->show_version = true; break;
		case 'n': case 's': case 'v': case 't': break;
		case ':':
			return ucm_error_set(error, -EINVAL,
					     "-%c needs a value", optopt);
		default:
			return ucm_error_set(
				error, -EINVAL, "unknown flag '%s'",
				optopt ? (char[]){ '-', (char)optopt, 0 }
				       : argv[optind - 1]);
		}
	}
	return num;
}

/* "ucmfs mount SOURCE MOUNTPOINT" is the same; a directory that is called so is
 * ./mount. */
static int take_operands(struct ucm_options *options, int argc, char **argv,
			 struct ucm_error *error)
{
	if (optind < argc && !strcmp(argv[optind], "mount"))
		optind++;
	if (argc - optind != 2)
		return ucm_error_set(
			error, -EINVAL,
			argc - optind > 2
				? "too many arguments: SOURCE MOUNTPOINT"
				: "SOURCE and MOUNTPOINT are needed; see "
				  "ucmfs --help");
	options->source = argv[optind];
	options->mountpoint = argv[optind + 1];
	return 0;
}

/* The file first, then SOURCE, then options, which may name SOURCE's tiers. */
int ucm_options_parse(struct ucm_options *options, int argc, char **argv,
		      struct ucm_error *error)
{
	const char **lists = calloc((size_t)argc + 1, sizeof(*lists));
	int num, err;

	if (!lists)
		return -ENOMEM;
	num = take_flags(options, argc, argv, lists, error);
	err = num < 0 ? num : 0;
	if (err || options->show_help || options->show_version) {
		free(lists);
		return err;
	}
	err = take_operands(options, argc, argv, error);
	for (int i = 0; i < num && !err; i++)
		err = each_option(options, lists[i], read_config, error);
	if (!err)
		err = ucm_config_source(&options->config, options->source,
					error);
	for (int i = 0; i < num && !err; i++)
		err = each_option(options, lists[i], set_option, error);
	if (!err)
		err = ucm_config_check(&options->config, error);
	if (options->threads < options->config.scan_threads)
		options->config.scan_threads = options->threads;
	free(lists);
	return err;
}

void ucm_options_help(FILE *out)
{
	fprintf(out,
		"Usage: ucmfs [mount] SOURCE MOUNTPOINT [-f] [-d] [-o OPTIONS]\n"
		"\n"
		"Mount KV-cache blocks that lie in tiers of directories.\n"
		"SOURCE: tiers, fast to slow, separated by ':'; directories of "
		"one tier by ',';\n"
		"  a tier may be named: nvme=/nvme0/kv,/nvme1/kv:nfs=/mnt/nfs/kv\n"
		"  a tier of memory: mem@8G\n"
		"  \"none\": the tiers are in the configuration file\n"
		"\n"
		"  -f             stay in the foreground\n"
		"  -d             print every request (implies -f)\n"
		"  -h, --help     this text\n"
		"  -V, --version  versions of ucmfs and libfuse\n"
		"\n"
		"Options (-o NAME,NAME=VALUE,...):\n");
	for (size_t i = 0; i < NUM_ROWS; i++) {
		char name[64];

		if (!rows[i].help)
			continue;
		snprintf(name, sizeof(name), "%s%s%s", rows[i].name,
			 rows[i].arg ? "=" : "", rows[i].arg ? rows[i].arg : "");
		fprintf(out, "  %-22s %s\n", name, rows[i].help);
	}
	fprintf(out, "Accepted without effect:");
	for (size_t i = 0; i < NUM_ROWS; i++) {
		if (!rows[i].help)
			fprintf(out, " %s%s", rows[i].name,
				!strcmp(rows[i].name, "x-") ? "*" : "");
	}
	fprintf(out, "\n");
}

bool ucm_options_passed(const struct ucm_options *options, const char *name)
{
	size_t len = strlen(name);
	const char *at = options->pass;

	/* ",a,b" */
	while (at && (strncmp(at + 1, name, len) ||
		      (at[1 + len] && at[1 + len] != ',')))
		at = strchr(at + 1, ',');
	return at;
}

static void print_text(const char *name, const char *value, FILE *out)
{
	fprintf(out, "%s: ", name);
	ucm_config_print_quoted(value, out);
	fputc('\n', out);
}

void ucm_options_print(const struct ucm_options *options, FILE *out)
{
	ucm_config_print(&options->config, out);
	for (size_t i = 0; i < NUM_ROWS; i++) {
		const struct option_row *row = &rows[i];
		const void *field = (const char *)options + row->offset;

		if (row->kind == SWITCH)
			fprintf(out, "%s: %s\n", row->name,
				switches[*(const enum ucm_switch *)field]);
		else if (row->kind == NUMBER && row->offset != AT(ready_fd))
			fprintf(out, "%s: %u\n", row->name,
				*(const unsigned *)field);
		else if (row->kind == BYTES || row->kind == LIMIT)
			fprintf(out, "%s: %llu\n", row->name,
				(unsigned long long)*(const uint64_t *)field);
		else if (row->kind == TEXT && *(char *const *)field)
			print_text(row->name, *(char *const *)field, out);
		else if ((row->kind == FLAG && *(const bool *)field) ||
			 (row->kind == PASS &&
			  ucm_options_passed(options, row->name)))
			fprintf(out, "%s: true\n", row->name);
	}
	if (options->has_uid)
		fprintf(out, "uid: %u\n", options->uid);
	if (options->has_gid)
		fprintf(out, "gid: %u\n", options->gid);
	if (options->log_file)
		print_text("log", options->log_file, out);
	fprintf(out, "log_level: %s\n",
		ucm_log_level_names[options->log_level]);
}
