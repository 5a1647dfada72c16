// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that [`fuzz`](crate::fuzz) has printed. They are kept because they test a rule that no other case tests. Each line is a step.

use super::{case, core, ring, skip, Case, Rule};
use crate::fuzz::replay;
use crate::kernel::version;

pub fn cases() -> Vec<Case> {
    let kept = |name, rule, text| program(name, rule, text);
    vec![
        kept(
            "programs: the heir of an event takes its place in a child",
            core(
                5755,
                "list_for_each_entry(iter_event, &ctx->event_list, event_entry) {",
            ),
            r#"
{"open":{"slot":0,"unit":0,"whom":"me","off":false,"inherit":true,"on-exec":"nothing","leader":null}}
{"spawn":1}
{"open":{"slot":1,"unit":0,"whom":{"child":1},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}
{"close":0}
{"open":{"slot":1,"unit":0,"whom":{"child":1},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}
"#,
        ),
        kept(
            "programs: an area is mapped anew while records of the old one wait",
            ring(656, "static void __rb_free_aux(struct perf_buffer *rb)"),
            r#"
{"open":{"slot":0,"unit":0,"whom":{"cpu":0},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}
{"map":{"slot":0,"pages":8}}
{"map-aux":{"slot":0,"pages":4,"overwrite":false,"at":"behind"}}
{"enable":0}
{"work":3}
{"unmap":{"slot":0,"aux":true}}
{"work":1}
{"map-aux":{"slot":0,"pages":4,"overwrite":false,"at":"far"}}
{"trace":0}
{"disable":0}
{"work":2}
"#,
        ),
        foreseen_since(
            (7, 3),
            "older kernels may refuse it with EINVAL",
            kept(
                "programs: a process that has ended leads no group",
                core(13981, "if (group_leader->state <= PERF_EVENT_STATE_EXIT) {"),
                r#"
{"spawn":0}
{"open":{"slot":0,"unit":0,"whom":{"child":0},"off":false,"inherit":false,"on-exec":"nothing","leader":null}}
{"exit":0}
{"spawn":0}
{"open":{"slot":1,"unit":0,"whom":{"child":0},"off":false,"inherit":false,"on-exec":"nothing","leader":0}}
{"poll":0}
{"enable":0}
{"count":0}
"#,
            ),
        ),
        kept(
            "programs: an event whose CPU was off stays off",
            core(15178, "static void __perf_event_exit_context(void *__info)"),
            r#"
{"open":{"slot":0,"unit":0,"whom":{"cpu":1},"off":false,"inherit":false,"on-exec":"nothing","leader":null}}
{"map":{"slot":0,"pages":8}}
{"map-aux":{"slot":0,"pages":16,"overwrite":false,"at":"behind"}}
{"trace":0}
{"online":{"cpu":1,"online":false}}
{"work":2}
{"open":{"slot":1,"unit":0,"whom":{"cpu":1},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}
{"online":{"cpu":1,"online":true}}
{"enable":0}
{"work":2}
{"open":{"slot":1,"unit":0,"whom":{"cpu":1},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}
{"redirect":{"slot":1,"to":0}}
{"trace":1}
{"disable":1}
{"work":2}
"#,
        ),
        kept(
            "programs: an event removed by exec",
            core(
                4756,
                "static void perf_event_remove_on_exec(struct perf_event_context *ctx)",
            ),
            r#"
{"spawn":0}
{"open":{"slot":0,"unit":0,"whom":{"child":0},"off":false,"inherit":false,"on-exec":"remove","leader":null}}
{"map":{"slot":0,"pages":8}}
{"map-aux":{"slot":0,"pages":16,"overwrite":false,"at":"behind"}}
{"run":0}
{"exec":0}
{"run":0}
{"poll":0}
{"enable":0}
{"run":0}
{"count":0}
"#,
        ),
        kept(
            "programs: the mapping keeps an event that is closed, and its place",
            core(7065, "perf_pmu_output_stop(event);"),
            r#"
{"open":{"slot":0,"unit":0,"whom":"me","off":false,"inherit":false,"on-exec":"nothing","leader":null}}
{"map":{"slot":0,"pages":8}}
{"map-aux":{"slot":0,"pages":16,"overwrite":false,"at":"behind"}}
{"close":0}
{"open":{"slot":1,"unit":0,"whom":"me","off":true,"inherit":false,"on-exec":"nothing","leader":null}}
{"work":3}
{"unmap":{"slot":0,"aux":true}}
{"work":1}
{"unmap":{"slot":0,"aux":false}}
{"open":{"slot":1,"unit":0,"whom":"me","off":true,"inherit":false,"on-exec":"nothing","leader":null}}
"#,
        ),
    ]
}

/// Skips the case on kernels before this version. `why` says what they do.
fn foreseen_since(first: (u32, u32), why: &'static str, case: Case) -> Case {
    let Case { name, rule, run } = case;
    super::case(name, rule, move |pmu| match version() >= first {
        true => run(pmu),
        false => Err(skip(why)),
    })
}

fn program(name: &str, rule: Rule, text: &'static str) -> Case {
    case(name, rule, move |pmu| {
        let steps = replay(pmu, text)?;
        Ok(format!("{steps} steps, as foreseen"))
    })
}
