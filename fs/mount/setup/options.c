/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the table of options, and what reads it; see options.h. */
#include <config.h>

#include "fs/mount/setup/options.h"

#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/parse.h"

enum kind {
	STORE,  /* ucm_config_set() knows it */
	SWITCH, /* auto, on, off */
	NUMBER,
	LOG,
	LEVEL,
	AREAS, /* what is debugged */
	TEXT,  /* a string of our own */
	BYTES, /* 64K to 16T; with min 0, also 0 */
	FLAG,  /* no value; also handed to libfuse */
	CONFIG,
};

enum where {
	BOTH,
	LINE, /* in -o */
	IN_FILE,
};

struct option_row {
	const char *name;
	const char *arg; /* NULL: takes no value */
	enum where where;
	enum kind kind;
	size_t offset;     /* in struct ucm_options */
	unsigned min, max; /* of numbers */
	const char *help;
};

#define AT(field) offsetof(struct ucm_options, field)
#define STORED STORE, 0, 0, 0
#define ANY 0, UCM_LEFT_OUT - 1

static const struct option_row rows[] = {
	{ "config", "FILE", LINE, CONFIG, 0, 0, 0, "settings of ucmfs.conf(5); options given here win" },
	{ "files", "DIR", BOTH, TEXT, AT(files), 0, 0, "the directory of SOURCE that has files/ [the first on disk that is not read-only]" },
	{ "limit", "[TIER:]SIZE", BOTH, STORED, "most that a tier's blocks and files may take: 500G, 80%; once per tier" },
	{ "write", "TIER:MODE", BOTH, STORED, "new blocks of a tier stay (default), are copied below soon (back; memory's default), at once (through), or are written below (around); once per tier" },
	{ "readonly", "TIER", BOTH, STORED, "never write to this tier; once per tier" },
	{ "policy", "NAME", BOTH, STORED, "which block is evicted when room is needed: hazard (default) or lru; none: no block is" },
	{ "promote", "N", BOTH, STORED, "copy a block to the fastest tier at its N-th use within an hour [2]; now, never" },
	{ "space_quota", "SIZE", BOTH, STORED, "most that the blocks of a space in spaces/ without its own quota may take [0: any]" },
	{ "durability", "WHEN", BOTH, STORED, "none (default), data or full: what a commit syncs" },
	{ "deadline", "SECONDS", BOTH, STORED, "give up on a directory that does not answer within this time [network file systems: 30, others: 0, never]" },
	{ "passthrough", "WHEN", BOTH, SWITCH, AT(passthrough), 0, 0, "auto (default), on or off: let the kernel read and write the files itself" },
	{ "io_uring", "WHEN", BOTH, SWITCH, AT(io_uring), 0, 0, "off (default), on or auto: FUSE requests over io_uring; a directory that hangs then holds up others" },
	{ "allow_other", NULL, BOTH, FLAG, AT(allow_other), 0, 0, "let other users use the mount" },
	{ "uid", "N", BOTH, NUMBER, AT(uid), ANY, "owner of blocks/ [the user who runs ucmfs]" },
	{ "gid", "N", BOTH, NUMBER, AT(gid), ANY, "group of blocks/ [that of the user who runs ucmfs]" },
	{ "log", "WHERE", BOTH, LOG, AT(log_file), 0, 0, "stderr (default with -f), syslog (default without) or a file: /PATH" },
	{ "log_level", "LEVEL", BOTH, LEVEL, AT(log_level), 0, 0, "error, warning, info (default) or debug" },
	{ "trace", "FILE", BOTH, TEXT, AT(trace), 0, 0, "record each use of a block in FILE; see ucm-trace(5)" },
	{ "ready-fd", "N", LINE, NUMBER, AT(ready_fd), 0, 65535, "write READY=1 to this descriptor when the mount answers" },

	{ "placement", "POLICY", IN_FILE, STORED, "directory of a new block in its tier: rendezvous (default), round_robin, random" },
	{ "high", "PERCENT", IN_FILE, STORED, "of a limit: above it, blocks move down or are evicted [95]" },
	{ "low", "PERCENT", IN_FILE, STORED, "of a limit: until it is reached [90]" },
	{ "reserve", "SIZE", IN_FILE, STORED, "free space to leave on each file system: 20G, 5% [0]" },
	{ "endurance", "TIER:BYTES", IN_FILE, STORED, "most that may be written to a tier in a day [any]" },
	{ "movers", "N", IN_FILE, STORED, "threads that move blocks [2]" },
	{ "move_rate", "SIZE", IN_FILE, STORED, "bytes a second that they copy, at most [0: any]" },
	{ "block_max", "SIZE", IN_FILE, STORED, "refuse larger blocks [1G]" },
	{ "spaces", "N", IN_FILE, STORED, "most spaces that one user other than root may make during a mount [8192]" },
	{ "checkpoint", "SECONDS", IN_FILE, STORED, "between two syncfs after commits [30]; 0: never" },
	{ "staging_age", "SECONDS", IN_FILE, STORED, "remove staging files that were not touched for this long [3600]" },
	{ "reverify", "SECONDS", IN_FILE, STORED, "how long a verified block counts as verified, for loaders that verify once [86400]; 0: they verify each load" },
	{ "threads", "N", IN_FILE, NUMBER, AT(threads), 1, 1024, "threads that answer requests [10]; as many, at most 4, fill the index at the start" },
	{ "entry_timeout", "SECONDS", IN_FILE, NUMBER, AT(entry_timeout_s), 0, 60, "how long the kernel may remember names and attributes [1]" },
	{ "budget", "SIZE", IN_FILE, BYTES, AT(budget), 0, 0, "bytes a second that all loaders of the node together may read and write [0: any]" },
	{ "inflight", "SIZE", IN_FILE, BYTES, AT(inflight), 0, 0, "bytes that each of them may have in flight [0: any]" },
	{ "trace_size", "SIZE", IN_FILE, BYTES, AT(trace_size), 1, 0, "of the trace's ring [64M]" },
	{ "debug", "AREA=DEPTH", IN_FILE, AREAS, 0, 0, 0, "debug these areas, with ':' between them; see ucm trace debug" },
};
#define NUM_ROWS (sizeof(rows) / sizeof(rows[0]))

/* mount(8)'s and libfuse's, NULL at the end: those that are handed on, and those
 * that have no effect here. The last ones are always on. */
static const char *const passed[] = {
	"ro", "sync", "dirsync", "noexec", "noatime", "nodiratime",
	"allow_root", "auto_unmount", NULL,
};
static const char *const ignored[] = {
	"rw", "async", "exec", "suid", "dev", "atime", "relatime", "defaults",
	"auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "x-*",
	"comment", "nosuid", "nodev", "default_permissions", NULL,
};

static const char *const switches[] = { "auto", "on", "off" };

void ucm_options_init(struct ucm_options *options)
{
	*options = (struct ucm_options){
		.threads = 10,
		.entry_timeout_s = 1,
		.io_uring = UCM_OFF,
		.ready_fd = -1,
		.uid = UCM_LEFT_OUT,
		.gid = UCM_LEFT_OUT,
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
	free(options->socket);
}

static const struct option_row *find_row(const char *name)
{
	for (size_t i = 0; i < NUM_ROWS; i++) {
		if (!strcmp(name, rows[i].name))
			return &rows[i];
	}
	return NULL;
}

static bool is_listed(const char *const *list, const char *name)
{
	while (*list && fnmatch(*list, name, 0))
		list++;
	return *list;
}

static int refuse(const char *name, struct ucm_error *error)
{
	return ucm_error_set(error, -ENOENT, "unknown option '%.200s'", name);
}

/* form: the words, for people. */
static int set_word(const struct option_row *row, const char *const *words,
		    unsigned num, const char *form, const char *value,
		    unsigned *out, struct ucm_error *error)
{
	if (!ucm_parse_word(value, words, num, out))
		return 0;
	return ucm_error_set(error, -EINVAL, "%s '%s': %s", row->name, value,
			     form);
}

static int set_number(const struct option_row *row, const char *value,
		      unsigned *out, struct ucm_error *error)
{
	uint64_t number;

	if (ucm_parse_range(value, row->min, row->max, &number))
		return ucm_error_set(error, -EINVAL,
				     "%s '%s': a number from %u to %u",
				     row->name, value, row->min, row->max);
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

#define BYTES_MIN (UINT64_C(1) << 16)
#define BYTES_MAX (UINT64_C(1) << 44)

static int set_bytes(const struct option_row *row, const char *value,
		     uint64_t *out, struct ucm_error *error)
{
	uint64_t bytes;

	if (ucm_parse_bytes(value, &bytes) || bytes > BYTES_MAX ||
	    (bytes < BYTES_MIN && (bytes || row->min)))
		return ucm_error_set(error, -EINVAL,
				     "%s '%s': %sfrom 64K to 16T", row->name,
				     value, row->min ? "" : "0, or ");
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
		return set_word(row, switches, 3, "auto, on or off", value,
				field, error);
	case NUMBER:
		return set_number(row, value, field, error);
	case LOG:
		return set_log(options, value, error);
	case LEVEL:
		return set_word(row, ucm_log_level_names, UCM_LOG_LEVELS,
				"error, warning, info or debug", value, field,
				error);
	case AREAS:
		return set_areas(value, error);
	case TEXT:
		return set_text(value, field);
	case BYTES:
		return set_bytes(row, value, field, error);
	case FLAG:
		*(bool *)field = true;
		return pass_on(options, row->name);
	case CONFIG: /* has been read */
		break;
	}
	return 0;
}

/* None of our rows. */
static int set_foreign(struct ucm_options *options, const char *name,
		       const char *value, struct ucm_error *error)
{
	if (is_listed(ignored, name))
		return 0;
	if (!is_listed(passed, name))
		return refuse(name, error);
	if (value)
		return ucm_error_set(error, -EINVAL, "option %s takes no value",
				     name);
	return pass_on(options, name);
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
		return set_foreign(options, text, value, error);
	if (row->where == IN_FILE)
		return ucm_error_set(error, -EINVAL,
				     "%s is a setting of ucmfs.conf(5) now: "
				     "put `%s: %.100s` into a file and mount with "
				     "-o config=FILE",
				     text, text, value ? value : row->arg);
	if (row->arg && !value)
		return ucm_error_set(error, -EINVAL,
				     "option %s needs a value: %s=%s", text,
				     text, row->arg);
	if (!row->arg && value)
		return ucm_error_set(error, -EINVAL, "option %s takes no value",
				     text);
	return apply(options, row, value, error);
}

/* From the configuration file; flags are true or false. */
static int set_from_file(void *arg, const char *key, const char *value,
			 struct ucm_error *error)
{
	const struct option_row *row = find_row(key);
	bool on;

	if (row ? row->where == LINE : !is_listed(passed, key))
		return refuse(key, error);
	if (row && row->arg)
		return apply(arg, row, value, error);
	if (ucm_parse_bool(value, &on))
		return ucm_error_set(error, -EINVAL, "%s '%s': true or false",
				     key, value);
	if (!on)
		return 0;
	return row ? apply(arg, row, NULL, error) : pass_on(arg, key);
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

/* The background's working directory is another. */
static int set_socket(struct ucm_options *options, const char *path)
{
	_cleanup_free_ char *here = *path == '/' ? NULL : getcwd(NULL, 0);

	free(options->socket);
	options->socket = NULL;
	if (*path == '/')
		options->socket = strdup(path);
	else if (!here || asprintf(&options->socket, "%s/%s", here, path) < 0)
		options->socket = NULL;
	return options->socket ? 0 : -ENOMEM;
}

static int take_flags(struct ucm_options *options, int argc, char **argv,
		      const char **lists, struct ucm_error *error)
{
	static const struct option longs[] = {
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ "socket", required_argument, NULL, 'S' },
		{ "private", no_argument, NULL, 'P' },
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
		case 'P': options->ends_with_peers = true; break;
		case 'S':
			if (set_socket(options, optarg))
				return ucm_error_set(error, -EINVAL,
						     "socket: %m");
			break;
		case 'n': case 's': case 'v': case 't': break;
		case ':':
			return ucm_error_set(error, -EINVAL,
					     optopt == 'S'
						     ? "--socket needs a PATH"
						     : "-%c needs a value",
					     optopt);
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
 * ./mount, and one that is called serve is ./serve. */
static int take_operands(struct ucm_options *options, int argc, char **argv,
			 struct ucm_error *error)
{
	if (optind < argc && !strcmp(argv[optind], "serve")) {
		if (argc - optind != 2 ||
		    !options->socket == !options->ends_with_peers)
			return ucm_error_set(error, -EINVAL,
					     "serve needs SOURCE, and "
					     "--socket PATH or --private");
		options->source = argv[optind + 1];
		if (options->ends_with_peers) /* its client asks again */
			options->config.lock_wait_s = 0;
		return 0;
	}
	if (options->ends_with_peers)
		return ucm_error_set(error, -EINVAL,
				     "--private is for serve, not for mounts");
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

/* SOURCE first, as settings and options may name its tiers; options win. */
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
	if (!err)
		err = ucm_config_source(&options->config, options->source,
					error);
	for (int i = 0; i < num && !err; i++)
		err = each_option(options, lists[i], read_config, error);
	for (int i = 0; i < num && !err; i++)
		err = each_option(options, lists[i], set_option, error);
	if (!err)
		err = ucm_config_check(&options->config, error);
	if (options->threads < options->config.scan_threads)
		options->config.scan_threads = options->threads;
	free(lists);
	return err;
}

const char *ucm_options_place(const struct ucm_options *options)
{
	if (options->mountpoint)
		return options->mountpoint;
	return options->socket ? options->socket : options->source;
}

static void print_rows(bool settings, FILE *out)
{
	for (size_t i = 0; i < NUM_ROWS; i++) {
		const char *arg = rows[i].arg;
		char name[64];

		if ((rows[i].where == IN_FILE) != settings)
			continue;
		snprintf(name, sizeof(name), "%s%s%s", rows[i].name,
			 !arg ? "" : settings ? ": " : "=", arg ? arg : "");
		fprintf(out, "  %-22s %s\n", name, rows[i].help);
	}
}

static void print_list(const char *title, const char *const *names, FILE *out)
{
	fprintf(out, "%s", title);
	while (*names)
		fprintf(out, " %s", *names++);
	fprintf(out, "\n");
}

void ucm_options_help(FILE *out)
{
	fprintf(out,
		"Usage: ucmfs [mount] SOURCE MOUNTPOINT [-f] [-d] [-o OPTIONS]\n"
		"       ucmfs serve SOURCE --socket PATH [-f] [-o OPTIONS]\n"
		"       ucmfs serve SOURCE --private [-f] [-o OPTIONS]\n"
		"\n"
		"Mount KV-cache blocks that lie in tiers of directories, or serve "
		"them without a mount.\n"
		"SOURCE: tiers, fast to slow, separated by ':'; directories of "
		"one tier by ',';\n"
		"  a tier may be named: nvme=/nvme0/kv,/nvme1/kv:nfs=/mnt/nfs/kv\n"
		"  a tier of memory: mem@8G\n"
		"  \"none\": the tiers are in the file of config=\n"
		"\n"
		"  -f             stay in the foreground\n"
		"  -d             print every request (implies -f)\n"
		"  --socket PATH  where programs connect to [a mount: "
		"/run/ucmfs/NUMBER.sock]\n"
		"  --private      end when the last program has disconnected\n"
		"  -h, --help     this text\n"
		"  -V, --version  versions of ucmfs and libfuse\n"
		"\n"
		"Options (-o NAME,NAME=VALUE,...):\n");
	print_rows(false, out);
	print_list("Handed to libfuse and the kernel:", passed, out);
	print_list("Accepted without effect:", ignored, out);
	fprintf(out, "\nSettings of the file of config=, which also takes the "
		     "options; see ucmfs.conf(5):\n");
	print_rows(true, out);
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

		if (row->where == LINE)
			continue;
		if (row->kind == SWITCH)
			fprintf(out, "%s: %s\n", row->name,
				switches[*(const enum ucm_switch *)field]);
		else if (row->kind == LEVEL)
			fprintf(out, "%s: %s\n", row->name,
				ucm_log_level_names[options->log_level]);
		else if (row->kind == NUMBER &&
			 *(const unsigned *)field != UCM_LEFT_OUT)
			fprintf(out, "%s: %u\n", row->name,
				*(const unsigned *)field);
		else if (row->kind == BYTES)
			fprintf(out, "%s: %llu\n", row->name,
				(unsigned long long)*(const uint64_t *)field);
		else if ((row->kind == TEXT || row->kind == LOG) &&
			 *(char *const *)field)
			print_text(row->name, *(char *const *)field, out);
		else if (row->kind == FLAG && *(const bool *)field)
			fprintf(out, "%s: true\n", row->name);
	}
	for (size_t i = 0; passed[i]; i++) {
		if (ucm_options_passed(options, passed[i]))
			fprintf(out, "%s: true\n", passed[i]);
	}
}
