/* SPDX-License-Identifier: Apache-2.0 */
/* test_presets.c - UCM's pipelines and policies, and the tiers they become. */
#include <config.h>

#include "fs/config/presets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tier_fixture.h"

static struct ucm_error error;

static void setup(void)
{
	fx_setup();
	fx_config_begin();
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

static int no_setting(void *arg, const char *key, const char *value,
		      struct ucm_error *why)
{
	(void)arg, (void)key, (void)value, (void)why;
	return -ENOENT;
}

static int read_text(const char *text)
{
	const char *path = fx_path("$/settings.yaml");
	FILE *file = fopen(path, "w");

	ck_assert_ptr_nonnull(file);
	fputs(fx_path("%s", text), file);
	fclose(file);
	return ucm_config_read(&fx_config, fx_path("$/settings.yaml"),
			       no_setting, NULL, &error);
}

/* The tiers in one line: "name:dir,dir name:..." */
static const char *tiers_text(void)
{
	static char text[1024];
	int len = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < fx_config.num_tiers; i++) {
		const struct ucm_tier_config *tier = &fx_config.tiers[i];

		len += snprintf(text + len, sizeof(text) - (size_t)len,
				"%s%s:", i ? " " : "", tier->name);
		for (unsigned j = 0; j < tier->num_dirs; j++)
			len += snprintf(text + len, sizeof(text) - (size_t)len,
					"%s%s", j ? "," : "", tier->dirs[j]);
	}
	return text;
}

static const struct {
	const char *text, *tiers;
	enum ucm_placement placement;
} presets[] = {
	{ "pipeline: Posix\nstorage_backends: /a\n", "tier0:/a", 0 },
	{ "store_pipeline: Nfs\nstorage_backends: /a:/b\n", "tier0:/a,/b", 0 },
	{ "pipeline: Cache|Posix\ncache_size: 8G\nstorage_backends: [/a, /b]\n",
	  "mem:mem@8G tier1:/a,/b", 0 },
	{ "pipeline: Cache|Ds3fs\nstorage_backends: /a\n",
	  "mem:mem@1G tier1:/a", 0 },
	{ "pipeline: Cache|Nfs\ncache: {cache_size: 50%}\n"
	  "nfs: {storage_backends: /a, device: 0}\n",
	  "mem:mem@50% tier1:/a", 0 },
	{ "pipeline: Cache|Pc\ncache_buffer_capacity_gb: 32\n"
	  "storage_backends: /a\n",
	  "mem:mem@32G tier1:/a", 0 },
	{ "pipeline: Cache|Empty\ncache_size: 1073741824\n",
	  "mem:mem@1073741824", 0 },
	{ "pipeline: Cache\n", "mem:mem@1G", 0 },
	{ "pipeline: [Cache, Posix]\nstorage_backends: /a\n",
	  "mem:mem@1G tier1:/a", 0 },
	{ "pipeline:\n  - {type: cache, size_gb: 50}\n"
	  "  - {type: posix, path: /a}\n  - {path: /b, type: nfs}\n",
	  "mem:mem@50G tier1:/a tier2:/b", 0 },
	{ "store_pipeline: [{type: Posix, path: /a}]\ndevice: 0\n", "tier0:/a",
	  0 },
	{ "pipeline: Posix\nstorage_backends: /a:/b\n"
	  "storage_policy: none\n", "tier0:/a,/b", UCM_PLACEMENT_RENDEZVOUS },
	{ "pipeline: Posix\nstorage_backends: /a:/b\n"
	  "storage_policy: round_robin\n", "tier0:/a,/b",
	  UCM_PLACEMENT_ROUND_ROBIN },
	{ "pipeline: Posix\nstorage_backends: /a:/b\n"
	  "storage_policy: random\n", "tier0:/a,/b", UCM_PLACEMENT_RANDOM },
	{ "pipeline: Posix\nposix:\n  storage_backends: /a:/b\n"
	  "  storage_policy: random\n", "tier0:/a,/b",
	  UCM_PLACEMENT_RANDOM },
	/* what is not there may be a server's */
	{ "pipeline: Cache|Posix\nstorage_backends: /none:/proc:/dev/shm\n"
	  "storage_policy: tiered\n",
	  "mem:mem@1G tier1:/dev/shm tier2:/none tier3:/proc", 0 },
};

UNIT_TEST(a_pipeline_becomes_tiers, .rows = NUM_ROWS(presets))
{
	ck_assert_msg(!read_text(presets[_i].text), "%s", error.text);
	ck_assert_str_eq(tiers_text(), presets[_i].tiers);
	ck_assert_int_eq(fx_config.placement, presets[_i].placement);
	ck_assert_int_eq(ucm_config_check(&fx_config, &error), 0);
}

static const struct {
	const char *text, *says;
} wrong[] = {
	{ "pipeline: Posix\n", "storage_backends is missing" },
	{ "storage_backends: /a\n", "pipeline is missing" },
	{ "pipeline: Cache|Empty\nstorage_backends: /a\n", "keeps nothing" },
	{ "pipeline: Posix|Cache\nstorage_backends: /a\n", "Cache comes first" },
	{ "pipeline: Cache|Cache\n", "Cache comes first" },
	{ "pipeline: Posix|Nfs\nstorage_backends: /a\n", "Cache comes first" },
	{ "pipeline: Cache|Posix|Nfs\n", "Cache comes first" },
	{ "pipeline: Empty\n", "store of the Python package" },
	{ "pipeline: Fake\n", "store of the Python package" },
	{ "pipeline: Cache|Fake\n", "store of the Python package" },
	{ "pipeline: Cache|Mooncake\n", "not here" },
	{ "pipeline: Cache|\nstorage_backends: /a\n", "stages are" },
	{ "pipeline: cache|posix\nstorage_backends: /a\n", "stages are" },
	{ "pipeline: Posix\nstorage_backends: /a\ncache_size: 1G\n",
	  "has no Cache" },
	{ "pipeline: Cache\ncache_size: much\n", "not a size" },
	{ "pipeline: Cache\ncache_size: 0\n", "not a size" },
	{ "pipeline: Posix\nstorage_backends: /a\nstorage_policy: striped\n",
	  "storage_policy 'striped': use none, round_robin, random or tiered" },
	{ "pipeline: Posix\nstorage_backends: /a\nstorage_policy: best\n",
	  "storage_policy 'best'" },
	{ "pipeline: Posix\nstorage_backends: '/a::/b'\n", "an empty path" },
	{ "pipeline: Posix\nstorage_backends: [/a, [/b]]\n", "not a path" },
	{ "pipeline: [Posix]\n", "storage_backends is missing" },
	{ "pipeline: [[Posix]]\n", "a stage is a map or a name" },
	{ "pipeline: []\n", "a stage is missing" },
	{ "pipeline: [{type: posix}]\n", "a stage is {type: cache" },
	{ "pipeline: [{path: /a}]\n", "a stage is {type: cache" },
	{ "pipeline: [{type: mooncake, path: /a}]\n", "a stage is {type: cache" },
	{ "pipeline: [{type: posix, path: /a, io_direct: 1}]\n",
	  "a stage is {type: cache" },
	{ "pipeline: [{type: cache, size_gb: 0}]\n", "size_gb is a number" },
	{ "pipeline: [{type: posix, path: /a}]\nstorage_backends: /b\n",
	  "leave out cache_size, storage_backends" },
	{ "pipeline: [Posix, {type: posix, path: /a}]\n", "tiers are listed" },
	{ "tiers:\n  - directories: [/b]\n"
	  "pipeline: [{type: posix, path: /a}]\n", "give one of them" },
	{ "pipeline: Posix\nposix: {pipeline: [Nfs]}\n", "not a single value" },
	{ "pipeline: Posix\nposix: /a\n", "not a map" },
	{ "pipeline: Posix\nposix: {cache_size: 1G}\n", "of the stage posix" },
	{ "pipeline: Cache\ncache: {storage_backends: /a}\n",
	  "of the stage cache" },
	{ "pipeline: Posix\nposix: {pipeline: Nfs}\n", "of the stage posix" },
	{ "pipeline: Posix\nstorage_backends: /a\nnfs: {device: 0}\n",
	  "has no such stage" },
	{ "tiers:\n  - directories: [/b]\npipeline: Posix\n"
	  "storage_backends: /a\n", "tiers are listed" },
};

UNIT_TEST(a_wrong_preset_is_named_with_its_line, .rows = NUM_ROWS(wrong))
{
	ck_assert_int_eq(read_text(wrong[_i].text), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "settings.yaml:"));
	ck_assert_msg(strstr(error.text, wrong[_i].says), "%s", error.text);
}

/* What is printed is read again as the same. */
UNIT_TEST(a_preset_is_printed_as_tiers)
{
	char *text;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	ck_assert_int_eq(read_text("pipeline: Cache|Posix\ncache_size: 50%\n"
				   "storage_backends: /a\n"),
			 0);
	ucm_config_print(&fx_config, file);
	fclose(file);
	ck_assert_ptr_nonnull(strstr(text, "- 'mem@50%'\n"));
	ck_assert_ptr_null(strstr(text, "limit"));
	ck_assert_ptr_null(strstr(text, "pipeline"));
	free(text);
}
