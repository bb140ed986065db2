/* SPDX-License-Identifier: Apache-2.0 */
/* promtext.c - Prometheus' text format; see promtext.h. */
#include <config.h>

#include "fs/watch/promtext.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

/* ---- text ---- */

/* Bytes of the character at text, 0 if it is none (RFC 3629). */
static unsigned utf8_len(const unsigned char *text)
{
	unsigned char least = 0x80, most = 0xbf;
	unsigned len;

	if (text[0] < 0x80)
		return 1;
	if (text[0] < 0xc2 || text[0] > 0xf4)
		return 0;
	len = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
	switch (text[0]) { /* longer than needed, surrogates, too large */
	case 0xe0: least = 0xa0; break;
	case 0xed: most = 0x9f; break;
	case 0xf0: least = 0x90; break;
	case 0xf4: most = 0x8f; break;
	default: break;
	}
	if (text[1] < least || text[1] > most)
		return 0;
	for (unsigned i = 2; i < len; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	}
	return len;
}

static bool is_utf8(const char *text)
{
	const unsigned char *at = (const unsigned char *)text;

	while (*at) {
		unsigned len = utf8_len(at);

		if (!len)
			return false;
		at += len;
	}
	return true;
}

char *ucm_prom_escape(const char *text)
{
	char *escaped = malloc(2 * strlen(text) + 1), *to = escaped;
	bool utf8 = is_utf8(text);

	for (; escaped && *text; text++) {
		if (*text == '\\' || *text == '"' || *text == '\n')
			*to++ = '\\';
		*to++ = *text == '\n' ? 'n' : *text & 0x80 && !utf8 ? '?' : *text;
	}
	if (escaped)
		*to = '\0';
	return escaped;
}

/* ---- the writer ---- */

int ucm_prom_begin(struct ucm_prom *prom, const char *name, const char *value)
{
	_cleanup_free_ char *escaped = ucm_prom_escape(value);

	*prom = (struct ucm_prom){ 0 };
	if (!escaped ||
	    asprintf(&prom->common, "%s=\"%s\"", name, escaped) < 0) {
		prom->common = NULL;
		return -ENOMEM;
	}
	prom->out = open_memstream(&prom->text, &prom->len);
	if (prom->out)
		return 0;
	free(prom->common);
	return -ENOMEM;
}

char *ucm_prom_end(struct ucm_prom *prom, size_t *len_out)
{
	bool failed = prom->failed || ferror(prom->out);

	failed |= fclose(prom->out) != 0;
	free(prom->common);
	if (failed) {
		free(prom->text);
		return NULL;
	}
	*len_out = prom->len;
	return prom->text;
}

void ucm_prom_family(struct ucm_prom *prom, const char *name, const char *type,
		     const char *help)
{
	prom->family = name;
	fprintf(prom->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
		type);
}

static void put_label(struct ucm_prom *prom, const char *name,
		      const char *value)
{
	_cleanup_free_ char *escaped = ucm_prom_escape(value);

	if (!escaped)
		prom->failed = true;
	else
		fprintf(prom->out, ",%s=\"%s\"", name, escaped);
}

/* The line up to its value. le: a further label, or NULL. */
static void put_name(struct ucm_prom *prom, const char *suffix,
		     const char *const *labels, const char *le)
{
	fprintf(prom->out, "%s%s{%s", prom->family, suffix, prom->common);
	for (; labels && *labels; labels += 2)
		put_label(prom, labels[0], labels[1]);
	if (le)
		put_label(prom, "le", le);
	fputs("} ", prom->out);
}

void ucm_prom_u64(struct ucm_prom *prom, const char *const *labels,
		  uint64_t value)
{
	put_name(prom, "", labels, NULL);
	fprintf(prom->out, "%" PRIu64 "\n", value);
}

static void put_double(struct ucm_prom *prom, double value)
{
	if (isinf(value))
		fprintf(prom->out, "%s\n", value > 0 ? "+Inf" : "-Inf");
	else
		fprintf(prom->out, "%.17g\n", value);
}

void ucm_prom_double(struct ucm_prom *prom, const char *const *labels,
		     double value)
{
	put_name(prom, "", labels, NULL);
	put_double(prom, value);
}

void ucm_prom_histogram(struct ucm_prom *prom, const char *const *labels,
			const double *bounds, const uint64_t *counts,
			unsigned num, double sum)
{
	uint64_t below = 0;
	char le[40];

	for (unsigned i = 0; i <= num; i++) {
		below += counts[i];
		if (i < num)
			snprintf(le, sizeof(le), "%.10g", bounds[i]);
		put_name(prom, "_bucket", labels, i < num ? le : "+Inf");
		fprintf(prom->out, "%" PRIu64 "\n", below);
	}
	put_name(prom, "_sum", labels, NULL);
	put_double(prom, sum);
	put_name(prom, "_count", labels, NULL);
	fprintf(prom->out, "%" PRIu64 "\n", below);
}
