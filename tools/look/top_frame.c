/* SPDX-License-Identifier: Apache-2.0 */
/* top_frame.c - what ucm top shows of two samples. */
#include <config.h>

#include "tools/look/top.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "tools/lib/text.h"

#define TIMES "ucmfs_request_duration_seconds"
#define OPENED "ucmfs_tier_opened_bytes_total"
#define COMMITTED "ucmfs_tier_committed_bytes_total"

/* Two samples, and what lies between them. */
struct span {
	struct ucm_target *target;
	const struct ucm_sample *before, *now;
	const struct ucm_metrics *metrics, *metrics_before; /* NULL: none */
	double seconds;
};

static struct span span_of(struct ucm_target *target,
			   const struct ucm_sample *before,
			   const struct ucm_sample *now)
{
	struct span span = {
		.target = target,
		.before = before,
		.now = now,
		.seconds = (double)(now->at_ns - before->at_ns) / 1e9,
	};

	if (now->has_metrics && before->has_metrics) {
		span.metrics = &now->metrics;
		span.metrics_before = &before->metrics;
	}
	return span;
}

/* A mount that was made anew counts from 0. */
static uint64_t grown(uint64_t before, uint64_t now)
{
	return now > before ? now - before : 0;
}

static double rate(const struct span *span, uint64_t before, uint64_t now)
{
	return span->seconds > 0 ? (double)grown(before, now) / span->seconds
				 : 0;
}

#define RATE(span, field) \
	rate(span, (span)->before->stats.field, (span)->now->stats.field)

/* The same of a counter among the metrics. */
static double metric_rate(const struct span *span, const char *name,
			  const char *label, const char *value)
{
	return rate(span,
		    (uint64_t)ucm_metrics_value(span->metrics_before, name,
						label, value),
		    (uint64_t)ucm_metrics_value(span->metrics, name, label,
						value));
}

static double hit_share(const struct span *span)
{
	uint64_t lookups = grown(span->before->stats.lookups,
				 span->now->stats.lookups);

	return lookups ? (double)grown(span->before->stats.hits,
				       span->now->stats.hits) / (double)lookups
		       : -1;
}

static double slowest(const struct span *span, const char *op, double share)
{
	return ucm_metrics_quantile(span->metrics, span->metrics_before,
				    TIMES "_bucket", "operation", op, share);
}

/* ---- text ---- */

static void print_head(const struct span *span, FILE *out)
{
	const struct ucm_control_statistics *stats = &span->now->stats;
	time_t now = time(NULL);
	double hits = hit_share(span);
	struct tm tm;
	char clock[16] = "", share[16] = "-";

	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	if (hits >= 0)
		snprintf(share, sizeof(share), "%.1f %%", 100 * hits);
	fprintf(out, "ucm top  %s  %s\n", clock, span->target->mount);
	fprintf(out, "%" PRIu64 " blocks, %s on disk, %s free of %s%s\n",
		stats->blocks, ucm_text_size(stats->bytes, false).text,
		ucm_text_size(stats->free_bytes, false).text,
		ucm_text_size(stats->total_bytes, false).text,
		stats->scanned ? "" : "; the index is being filled");
	fprintf(out,
		"a second: %.0f lookups, hits %s, %.0f opens, %.0f commits, "
		"%.0f removed, %.0f errors\n",
		RATE(span, lookups), share, RATE(span, opens),
		RATE(span, commits), RATE(span, removed),
		RATE(span, io_errors));
}

static void print_tier(const struct span *span, const char *tier, FILE *out)
{
	static const char *const gauges[] = { "ucmfs_tier_size_bytes",
					      "ucmfs_tier_free_bytes",
					      "ucmfs_tier_used_bytes" };
	static const char *const rates[] = { OPENED, COMMITTED };

	fprintf(out, "%-12s", tier);
	for (unsigned i = 0; i < 3; i++)
		fprintf(out, " %8s",
			ucm_text_size((uint64_t)ucm_metrics_value(
					      span->metrics, gauges[i], "tier",
					      tier), false).text);
	for (unsigned i = 0; i < 2; i++)
		fprintf(out, " %10s",
			ucm_text_size((uint64_t)metric_rate(span, rates[i],
							    "tier", tier),
				      false).text);
	fputc('\n', out);
}

static void print_tiers(const struct span *span, FILE *out)
{
	if (!span->metrics)
		return;
	fprintf(out, "\n%-12s %8s %8s %8s %10s %10s\n", "TIER", "SIZE", "FREE",
		"USED", "OPENED/s", "WRITTEN/s");
	for (unsigned i = 0;
	     i < UCM_TARGET_TIERS && span->target->tiers[i]; i++)
		print_tier(span, span->target->tiers[i], out);
}

/* The operations that there are samples of, by the metrics' own order. */
static bool next_operation(const struct span *span, size_t *at, char *op,
			   size_t size)
{
	for (; *at < span->metrics->num; ++*at) {
		const struct ucm_metric *metric = &span->metrics->metrics[*at];

		if (!strcmp(metric->name, TIMES "_count") &&
		    !ucm_metric_label(metric, "operation", op, size)) {
			++*at;
			return true;
		}
	}
	return false;
}

static void print_operations(const struct span *span, FILE *out)
{
	char op[32];
	size_t at = 0;

	if (!span->metrics)
		return;
	fprintf(out, "\n%-12s %10s %8s %8s\n", "OPERATION", "A SECOND",
		"MEDIAN", "99 %");
	while (next_operation(span, &at, op, sizeof(op))) {
		double per_s = metric_rate(span, TIMES "_count", "operation",
					   op);

		if (per_s > 0)
			fprintf(out, "%-12s %10.0f %8s %8s\n", op, per_s,
				ucm_text_duration(slowest(span, op, 0.5)).text,
				ucm_text_duration(slowest(span, op, 0.99)).text);
	}
}

static void print_hottest(const struct span *span,
			  const struct ucm_hottest *hottest, FILE *out)
{
	time_t now = time(NULL);

	if (!hottest->num)
		return;
	fprintf(out, "\n%-32s %8s %6s %8s %-8s %s\n", "HOTTEST", "USES", "USED",
		"SIZE", "TIER", "SPACE");
	for (size_t i = 0; i < hottest->num; i++) {
		const struct ucm_control_place *place =
			&hottest->blocks[i].row.place;

		fprintf(out, "%s %8" PRIu32 " %6s %8s %-8s %s\n",
			ucm_hex(&hottest->blocks[i].row.id).text, place->uses,
			place->atime_s ? ucm_text_age(now - place->atime_s).text
				       : "ended",
			ucm_text_size(place->size, false).text,
			ucm_target_tier(span->target, place->tier),
			hottest->blocks[i].folder);
	}
}

void ucm_top_print(struct ucm_target *target, const struct ucm_sample *before,
		   const struct ucm_sample *now,
		   const struct ucm_hottest *hottest, FILE *out)
{
	struct span span = span_of(target, before, now);

	print_head(&span, out);
	print_tiers(&span, out);
	print_operations(&span, out);
	print_hottest(&span, hottest, out);
}

/* ---- JSON ---- */

static json_t *describe_tiers(const struct span *span)
{
	json_t *list = json_array();

	for (unsigned i = 0; span->metrics && i < UCM_TARGET_TIERS &&
			     span->target->tiers[i]; i++) {
		const char *tier = span->target->tiers[i];

		ucm_json_add(list,
			     json_pack("{ss sf sf}", "name", tier,
				       "opened_bytes_per_s",
				       metric_rate(span, OPENED, "tier", tier),
				       "committed_bytes_per_s",
				       metric_rate(span, COMMITTED, "tier",
						   tier)));
	}
	return list;
}

static json_t *describe_operations(const struct span *span)
{
	json_t *list = json_array();
	char op[32];
	size_t at = 0;

	while (span->metrics && next_operation(span, &at, op, sizeof(op)))
		ucm_json_add(
			list, json_pack("{ss sf sf sf}", "name", op, "per_s",
					metric_rate(span, TIMES "_count",
						    "operation", op),
					"median_s", slowest(span, op, 0.5),
					"p99_s", slowest(span, op, 0.99)));
	return list;
}

static json_t *describe_hottest(const struct span *span,
				const struct ucm_hottest *hottest)
{
	json_t *list = json_array();

	for (size_t i = 0; i < hottest->num; i++) {
		const struct ucm_hot *hot = &hottest->blocks[i];

		ucm_json_add(
			list,
			json_pack("{so so ss sI sI}", "id",
				  ucm_json_id(&hot->row.id), "space",
				  ucm_json_text(hot->folder), "tier",
				  ucm_target_tier(span->target,
						  hot->row.place.tier),
				  "uses", (json_int_t)hot->row.place.uses,
				  "used", (json_int_t)hot->row.place.atime_s));
	}
	return list;
}

json_t *ucm_top_describe(struct ucm_target *target,
			 const struct ucm_sample *before,
			 const struct ucm_sample *now,
			 const struct ucm_hottest *hottest)
{
	struct span span = span_of(target, before, now);
	double hits = hit_share(&span);

	return json_pack(
		"{so sf sI sI sI sI sf so sf sf sf sf so so so}", "mount",
		ucm_json_text(target->mount), "seconds", span.seconds, "blocks",
		(json_int_t)now->stats.blocks, "bytes",
		(json_int_t)now->stats.bytes, "total_bytes",
		(json_int_t)now->stats.total_bytes, "free_bytes",
		(json_int_t)now->stats.free_bytes, "lookups_per_s",
		RATE(&span, lookups), "hit_rate",
		hits < 0 ? json_null() : json_real(hits), "opens_per_s",
		RATE(&span, opens), "commits_per_s", RATE(&span, commits),
		"removed_per_s", RATE(&span, removed), "errors_per_s",
		RATE(&span, io_errors), "tiers", describe_tiers(&span),
		"operations", describe_operations(&span), "hottest",
		describe_hottest(&span, hottest));
}
