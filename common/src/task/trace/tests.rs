use super::*;
use crate::{
    ids::{Attempt, ShardId, TaskId},
    task::envelope::Properties,
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn context() -> TraceContext {
    TraceContext::parse(PARENT).expect("the standard's own example")
}

#[test]
fn a_traceparent_reads_back_as_it_was() {
    assert_eq!(context().to_string(), PARENT);
    assert_eq!(context().trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(context().is_sampled());
    let quiet = PARENT.replace("-01", "-00");
    assert!(TraceContext::parse(&quiet).is_some_and(|context| !context.is_sampled()));
}

#[test]
fn what_is_malformed_names_no_trace() {
    for text in [
        "",
        "00-1-2-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-é",
    ] {
        assert_eq!(TraceContext::parse(text), None, "{text}");
    }
}

#[test]
fn a_version_of_later_days_is_read_as_far_as_it_is_known() {
    assert_eq!(TraceContext::parse(&PARENT.replacen("00", "cc", 1)), Some(context()));
    assert_eq!(TraceContext::parse(&format!("{}-more", PARENT.replacen("00", "cc", 1))), Some(context()));
}

#[test]
fn each_attempt_has_a_hop_of_its_own_and_every_copy_of_it_the_same() {
    let id = TaskId::mint(uuid::Uuid::nil(), ShardId::new(1));
    let hop = |attempt| context().handing_over(MessageId { id, attempt: Attempt::new(attempt) });
    assert_eq!(hop(1), hop(1));
    assert_ne!(hop(1).span_id, hop(2).span_id);
    assert_eq!((hop(1).trace_id, hop(1).is_sampled()), (context().trace_id, true));
}

#[test]
fn the_tasks_own_headers_come_before_the_message_it_came_as() {
    let of_message = PARENT.replace("00f067aa0ba902b7", "1111111111111111");
    let field = (HEADER_TRACEPARENT.into(), Field::Text(of_message.as_str().into()));
    let properties = Properties { headers: Some(vec![field]), ..Properties::default() };
    let envelope = Envelope { properties, ..Envelope::default() };
    let carried = |own: &str| {
        let headers = BTreeMap::from([(HEADER_TRACEPARENT.to_owned(), own.to_owned())]);
        TraceContext::carried(&headers, Some(&envelope))
    };
    assert_eq!(carried(PARENT), Some(context()));
    assert_eq!(carried("nonsense"), TraceContext::parse(&of_message));
    assert_eq!(TraceContext::carried(&BTreeMap::new(), None), None);
}

#[test]
fn a_caller_is_named_in_headers_that_name_no_trace() {
    let upstream = || Upstream::of(Some(PARENT), Some("vendor=1")).expect("an upstream");
    let mut headers = BTreeMap::from([(HEADER_TRACEPARENT.to_owned(), "nonsense".to_owned())]);
    upstream().put_into(&mut headers);
    assert_eq!(headers[HEADER_TRACEPARENT], PARENT);
    assert_eq!(headers[HEADER_TRACESTATE], "vendor=1");
    let own = PARENT.replace("00f067aa0ba902b7", "1111111111111111");
    let mut headers = BTreeMap::from([(HEADER_TRACEPARENT.to_owned(), own.clone())]);
    upstream().put_into(&mut headers);
    assert_eq!(headers, BTreeMap::from([(HEADER_TRACEPARENT.to_owned(), own)]));
    assert_eq!(Upstream::of(Some("nonsense"), None), None);
    assert_eq!(Upstream::of(None, Some("vendor=1")), None);
}
