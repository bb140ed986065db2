/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.c - draws tiers; see chart.h.
 *
 * Sizes are on a scale of doublings. A viewer that likes it dark has it dark. Curves
 * differ in their dashes, too; the figures stand in the titles of the dots.
 */
#include <config.h>

#include "tools/plan/chart.h"

#include <math.h>
#include <string.h>

#include "tools/lib/text.h"

#define LEFT 64
#define WIDTH 440  /* of a panel */
#define HEIGHT 180
#define PANEL 250  /* with what is around it */
#define TOP 60     /* of the first one */
#define LABEL 52   /* the least between two sizes */

static const char style[] =
	"svg { background: #fff; fill: #222; font: 12px sans-serif; }\n"
	"line { stroke: #ddd; } polyline { fill: none; stroke-width: 2; }\n"
	".c0 { stroke: #06b; fill: #06b; } .c1 { stroke: #c50; fill: #c50; }\n"
	".c1 { stroke-dasharray: 6 3; } circle.c1 { stroke-dasharray: none; }\n"
	"@media (prefers-color-scheme: dark) {\n"
	"svg { background: #181818; fill: #eee; } line { stroke: #444; }\n"
	".c0 { stroke: #5bf; fill: #5bf; } .c1 { stroke: #fa5; fill: #fa5; } }\n";

struct chart {
	FILE *to;
	const struct ucm_tier_row *rows;
	unsigned num;
};

struct panel {
	const struct chart *chart;
	unsigned top;
	bool seconds; /* to the first token; else the hit rate */
	double most;
};

static double value(const struct panel *panel, const struct ucm_tier_row *row)
{
	return panel->seconds ? row->first_token : row->hit_rate;
}

static struct ucm_text say(const struct panel *panel, double what)
{
	struct ucm_text text;

	if (panel->seconds)
		return ucm_text_duration(what);
	snprintf(text.text, sizeof(text.text), "%.3g %%", 100 * what);
	return text;
}

static double x_of(const struct chart *chart, uint64_t capacity)
{
	double first = log2((double)chart->rows[0].capacity);
	double range = log2((double)chart->rows[chart->num - 1].capacity) - first;

	return range > 0 ? LEFT + WIDTH * (log2((double)capacity) - first) / range
			 : LEFT + WIDTH / 2;
}

static double y_of(const struct panel *panel, double what)
{
	return panel->top + HEIGHT * (1 - what / panel->most);
}

/* A round step, at most five of which reach over all. */
static double step_of(double most)
{
	static const double round[] = { 1, 2, 5, 10 };
	double ten = pow(10, floor(log10(most / 4)));
	unsigned i = 0;

	while (i < 3 && round[i] * ten < most / 4 * .999)
		i++;
	return round[i] * ten;
}

static void draw_scale(struct panel *panel)
{
	FILE *to = panel->chart->to;
	double most = 0, step;

	for (unsigned i = 0; i < panel->chart->num; i++)
		most = fmax(most, value(panel, &panel->chart->rows[i]));
	step = step_of(most > 0 ? most : 1);
	panel->most = step * fmax(ceil(most / step * .999), 1);
	for (double at = 0; at < panel->most + step / 2; at += step)
		fprintf(to, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>"
			"<text x='%d' y='%.1f' text-anchor='end'>%s</text>\n",
			LEFT, LEFT + WIDTH, y_of(panel, at), y_of(panel, at),
			LEFT - 8, y_of(panel, at) + 4,
			at > 0 ? say(panel, at).text : "0");
}

static void draw_sizes(const struct panel *panel)
{
	const struct chart *chart = panel->chart;
	double last = -LABEL;

	for (unsigned i = 0; i < chart->num; i++) {
		double x = x_of(chart, chart->rows[i].capacity);

		if (x < last + LABEL)
			continue;
		last = x;
		fprintf(chart->to, "<text x='%.1f' y='%u' text-anchor='middle'>%s"
			"</text>\n", x, panel->top + HEIGHT + 18,
			ucm_text_size(chart->rows[i].capacity, false).text);
	}
	fprintf(chart->to, "<text x='%d' y='%u' text-anchor='middle'>capacity, "
		"bytes</text>\n", LEFT + WIDTH / 2, panel->top + HEIGHT + 36);
}

static void draw_curve(const struct panel *panel, const char *policy,
		       unsigned number)
{
	const struct chart *chart = panel->chart;
	const struct ucm_tier_row *row, *end = chart->rows + chart->num;

	fprintf(chart->to, "<polyline class='c%u' style='fill: none' points='",
		number);
	for (row = chart->rows; row < end; row++)
		if (!strcmp(row->policy, policy))
			fprintf(chart->to, "%.1f,%.1f ",
				x_of(chart, row->capacity),
				y_of(panel, value(panel, row)));
	fprintf(chart->to, "'/>\n");
	for (row = chart->rows; row < end; row++)
		if (!strcmp(row->policy, policy))
			fprintf(chart->to, "<circle class='c%u' r='3' cx='%.1f' "
				"cy='%.1f'><title>%s, %s: %s</title></circle>\n",
				number, x_of(chart, row->capacity),
				y_of(panel, value(panel, row)), policy,
				ucm_text_size(row->capacity, false).text,
				say(panel, value(panel, row)).text);
}

/* The rows of the first capacity have the policies, one after the other. */
static unsigned policies(const struct chart *chart)
{
	unsigned num = 1;

	while (num < chart->num &&
	       strcmp(chart->rows[num].policy, chart->rows[0].policy))
		num++;
	return num;
}

static void draw_panel(const struct chart *chart, unsigned number)
{
	struct panel panel = { .chart = chart, .top = TOP + number * PANEL,
			       .seconds = number };

	fprintf(chart->to, "<text x='%d' y='%u'>%s</text>\n", LEFT, panel.top - 10,
		number ? "first token of a request, expected" : "hit rate");
	draw_scale(&panel);
	draw_sizes(&panel);
	for (unsigned i = 0; i < policies(chart); i++)
		draw_curve(&panel, chart->rows[i].policy, i);
}

void ucm_chart_draw(FILE *to, const struct ucm_tier_row *rows, unsigned num)
{
	const struct chart chart = { to, rows, num };
	unsigned panels = rows[0].first_token > 0 ? 2 : 1;

	fprintf(to, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' "
		"viewBox='0 0 %d %d'><title>What tiers of some sizes bring</title>\n"
		"<style>%s</style>\n", LEFT + WIDTH + 40, TOP + (int)panels * PANEL,
		LEFT + WIDTH + 40, TOP + (int)panels * PANEL, style);
	for (unsigned i = 0; i < policies(&chart); i++)
		fprintf(to, "<polyline class='c%u' points='%u,20 %u,20'/>"
			"<text x='%u' y='24'>%s</text>\n", i, LEFT + i * 110,
			LEFT + i * 110 + 28, LEFT + i * 110 + 34, rows[i].policy);
	for (unsigned i = 0; i < panels; i++)
		draw_panel(&chart, i);
	fprintf(to, "</svg>\n");
}
