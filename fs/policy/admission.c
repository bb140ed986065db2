/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.c - which new blocks are written; see admission.h.
 *
 * The budget is a debt that is paid at an even rate. The threshold follows it:
 * it grows with what is owed, up to 1 for an hour's budget, and goes back to 0
 * with it. Nothing can be saved up, so that a quiet night does not pay for a
 * flood in the morning. What is written without asking may owe more, but no more
 * than a day's budget: nobody shall wait for weeks for what somebody has copied.
 */
#include <config.h>

#include "fs/policy/admission.h"
#include "fs/policy/mark.h"
#include "fs/policy/rates.h"

#define ADMISSION_DAY_S	   86400.0
#define ADMISSION_FULL_S   3600.0 /* of budget owed: nothing is written */
#define ADMISSION_AGE_GAIN (1 / 256.0)
/* Of two that are worth about the same the newer stays: what is learnt is not so
 * exact, and refusing costs the rest of the chain. */
#define ADMISSION_MARGIN   0.95

void ucm_admission_init(struct ucm_admission *admission, double threshold,
			uint64_t bytes_per_day)
{
	*admission = (struct ucm_admission){
		.bytes_per_day = bytes_per_day,
		.threshold = threshold,
	};
}

void ucm_admission_evicted(struct ucm_admission *admission, uint32_t age_s)
{
	double *usual = &admission->usual_age_s;

	if (*usual == 0)
		*usual = age_s;
	else
		*usual += (age_s - *usual) * ADMISSION_AGE_GAIN;
}

/* What is owed by now. A clock that jumped back pays nothing. */
static void admission_pay(struct ucm_admission *admission, uint32_t now_s)
{
	double paid = policy_age(now_s, admission->then_s) *
		      (double)admission->bytes_per_day / ADMISSION_DAY_S;

	if (!admission->began)
		paid = 0;
	admission->began = true;
	admission->then_s = now_s;
	admission->owed_bytes = admission->owed_bytes > paid
					? admission->owed_bytes - paid
					: 0;
}

void ucm_admission_wrote(struct ucm_admission *admission, uint32_t now_s,
			 uint64_t bytes)
{
	if (!admission->bytes_per_day)
		return;
	admission_pay(admission, now_s);
	admission->owed_bytes += (double)bytes;
	if (admission->owed_bytes > (double)admission->bytes_per_day)
		admission->owed_bytes = (double)admission->bytes_per_day;
}

double ucm_admission_owed(struct ucm_admission *admission, uint32_t now_s)
{
	double hour = (double)admission->bytes_per_day * ADMISSION_FULL_S /
		      ADMISSION_DAY_S;

	if (!admission->bytes_per_day)
		return 0;
	admission_pay(admission, now_s);
	return admission->owed_bytes / hour;
}

/* Above 1, nothing passes. */
static double admission_threshold(struct ucm_admission *admission,
				  uint32_t now_s)
{
	return admission->threshold + ucm_admission_owed(admission, now_s);
}

static double admission_chance(const struct ucm_admission *admission,
			       const struct ucm_policy *policy,
			       const struct ucm_policy_state *fresh)
{
	double usual = admission->usual_age_s;
	uint32_t age = usual > 0 && usual < RATES_AGE_MAX ? (uint32_t)usual
							  : RATES_AGE_MAX;

	return ucm_policy_is_known(fresh)
		       ? 1
		       : policy->ops->chance(policy, fresh, age);
}

bool ucm_admission_admits(struct ucm_admission *admission,
			  const struct ucm_policy *policy, uint32_t now_s,
			  const struct ucm_policy_state *fresh,
			  const double *victim_worth)
{
	double threshold = admission_threshold(admission, now_s);

	if (threshold > 0 &&
	    admission_chance(admission, policy, fresh) < threshold)
		return false;
	return !victim_worth || !policy->ops->refuses ||
	       policy->ops->worth(policy, now_s, fresh) >=
		       ADMISSION_MARGIN * *victim_worth;
}
