/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - what a mount measures (.ucmfs/metrics), read back from
 * Prometheus' text format.
 */
#ifndef UCM_TOOLS_LIB_METRICS_H
#define UCM_TOOLS_LIB_METRICS_H

#include <stddef.h>

struct ucm_metric {
	const char *name;
	const char *labels; /* as they stand between the braces; or "" */
	double value;
};

struct ucm_metrics {
	char *text;
	struct ucm_metric *metrics; /* in the text's order; lead into it */
	size_t num;
};

/* Takes text over, also after an error. 0, or -EINVAL (a line is none). */
int ucm_metrics_parse(char *text, struct ucm_metrics *out);

#define UCM_METRICS_MAX (16u << 20)

/* From a mount: 0 or -errno (not reported: an older mount has none). */
int ucm_metrics_read(const char *mount, struct ucm_metrics *out);
void ucm_metrics_fini(struct ucm_metrics *metrics);

/* A label's value; -ENOENT, or -ERANGE: too long. */
int ucm_metric_label(const struct ucm_metric *metric, const char *label,
		     char *out, size_t size);

/* Of the first of that name that has the label (NULL: any); 0 if none has. metrics
 * may be NULL. */
double ucm_metrics_value(const struct ucm_metrics *metrics, const char *name,
			 const char *label, const char *value);

/*
 * What share of a histogram's events was not slower, in seconds, of those that
 * came since before (NULL: of all): the upper bound of the bucket that it lies
 * in. 0 if there were none.
 */
double ucm_metrics_quantile(const struct ucm_metrics *metrics,
			    const struct ucm_metrics *before,
			    const char *name, const char *label,
			    const char *value, double share);

#endif
