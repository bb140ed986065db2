/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_config.c - SOURCE, settings, YAML and space.json from any bytes: taken,
 * or refused in words. What is taken can be printed and read back.
 *
 * The first byte of the input says which of them it is.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/parse.h"
#include "fs/block/manifest.h"
#include "fs/config/config.h"
#include "hashing/tree.h"
#include "tests/fuzz/require.h"

static struct ucm_error error;

static int set_here(void *arg, const char *key, const char *value,
		    struct ucm_error *why)
{
	return ucm_config_set(arg, key, value, why);
}

static int read_yaml(struct ucm_config *config, const char *text, size_t len)
{
	char path[64];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	int err;

	REQUIRE(fd >= 0 && write(fd, text, len) == (ssize_t)len);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	err = ucm_config_read(config, path, set_here, config, &error);
	close(fd);
	return err;
}

static char *print(const struct ucm_config *config)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	REQUIRE(out);
	ucm_config_print(config, out);
	fclose(out);
	return text;
}

/* YAML has no room for control characters, and folds line ends. */
static bool is_plain(const char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text < ' ' || (unsigned char)*text > 126)
			return false;
	}
	return true;
}

static bool has_plain_paths(const struct ucm_config *config)
{
	for (unsigned i = 0; i < config->num_tiers; i++) {
		if (!config->tiers[i].num_dirs)
			return false;
		for (unsigned j = 0; j < config->tiers[i].num_dirs; j++) {
			if (!is_plain(config->tiers[i].dirs[j]))
				return false;
		}
	}
	return true;
}

static void check_printed(const struct ucm_config *config)
{
	struct ucm_config again;
	char *first, *second;

	if (!config->num_tiers || !has_plain_paths(config))
		return;
	ucm_config_init(&again);
	first = print(config);
	REQUIRE(!read_yaml(&again, first, strlen(first)));
	second = print(&again);
	REQUIRE(!strcmp(first, second));
	free(first);
	free(second);
	ucm_config_fini(&again);
}

/* "SOURCE\nkey=value\nkey=value..." */
static void fuzz_source(struct ucm_config *config, char *text)
{
	char *save = NULL, *line = strtok_r(text, "\n", &save);

	if (!line || ucm_config_source(config, line, &error))
		return;
	while ((line = strtok_r(NULL, "\n", &save))) {
		char *equals = strchr(line, '=');
		int err;

		if (!equals)
			continue;
		*equals = '\0';
		error.text[0] = '\0';
		err = ucm_config_set(config, line, equals + 1, &error);
		REQUIRE(!err || err == -ENOENT ||
			(err == -EINVAL && error.text[0]));
	}
	if (!ucm_config_check(config, &error))
		check_printed(config);
}

static void fuzz_yaml(struct ucm_config *config, const char *text, size_t len)
{
	int err;

	error.text[0] = '\0';
	err = read_yaml(config, text, len);
	REQUIRE(!err || error.text[0]);
	if (!err && !ucm_config_check(config, &error))
		check_printed(config);
}

static void fuzz_manifest(const char *text, size_t len)
{
	struct ucm_manifest manifest;
	int err;

	error.text[0] = '\0';
	err = ucm_manifest_parse(text, len, &manifest, &error);
	REQUIRE(!err || error.text[0]);
	if (err)
		return;
	REQUIRE(manifest.geometry.num_layers && manifest.geometry.k_bytes);
}

static void fuzz_words(const char *text)
{
	uint64_t number;
	bool yes;
	struct ucm_id id;
	char name[UCM_TREE_BLOCK_LEN + 1];

	ucm_parse_u64(text, &number);
	ucm_parse_bytes(text, &number);
	if (!ucm_parse_limit(text, &number, &yes) && yes)
		REQUIRE(number >= 1 && number <= 100);
	ucm_parse_bool(text, &yes);
	REQUIRE(ucm_tree_parse_bucket(text) < 256);
	if (!ucm_tree_parse_block(text, &id)) {
		ucm_tree_block_name(&id, name);
		REQUIRE(!strcmp(name, text));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_config config;
	char *text;

	if (size < 1)
		return 0;
	text = malloc(size); /* without the first byte, and with a NUL */
	REQUIRE(text);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	ucm_config_init(&config);
	switch (data[0] & 3) {
	case 0: fuzz_source(&config, text); break;
	case 1: fuzz_yaml(&config, text, size - 1); break;
	case 2: fuzz_manifest(text, size - 1); break;
	case 3: fuzz_words(text); break;
	}
	ucm_config_fini(&config);
	free(text);
	return 0;
}
