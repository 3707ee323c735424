//! Several hosts in one URL.

use super::{complaints, read};

fn file(database: &str, amqp: &str) -> String {
    format!("[[database]]\nurl = \"{database}\"\n[amqp]\nurl = \"{amqp}\"\n")
}

const DATABASE: &str = "postgres://u:s3cret@pg1:5432,pg2:5433/tasks?target_session_attrs=read-write";
const AMQP: &str = "amqp://u:s3cret@mq1:5672,mq2/%2f";

#[test]
fn a_url_may_name_several_hosts() {
    let config = read(&file(DATABASE, AMQP), &[]).expect("accepted");
    assert_eq!(config.databases[0].place(), "postgres://u@pg1:5432,pg2:5433/tasks");
    assert_eq!(config.amqp.place(), "amqp://u@mq1:5672,mq2/%2f");
    assert!(config.amqp.warning().is_some());
    let here = read(&file(DATABASE, "amqp://u:p@127.0.0.1:1,[::1]:2/%2f"), &[]).expect("accepted");
    assert_eq!(here.amqp.warning(), None);
}

#[test]
fn a_malformed_list_of_hosts_is_refused_by_its_key() {
    let database = |url: &str| complaints(&file(url, AMQP), &[]);
    for (url, reason) in [
        ("postgres://u:s3cret@pg1,,pg2/tasks", "empty host"),
        ("postgres://u:s3cret@pg1,pg1/tasks", "names the host pg1 twice"),
        ("postgres://u:s3cret@pg1:x,pg2:5432/tasks", "a port of the host pg1:x"),
        ("postgres://u:s3cret@pg1,pg2/tasks?port=1,2", "lists its hosts twice"),
        ("postgres://u:s3cret@/tasks?host=pg1,pg2&port=1,2,3", "3 and 2 items"),
        ("postgres://u:s3cret@pg1/tasks?target_session_attrs=standby", "target_session_attrs=standby"),
    ] {
        let found = database(url).join("\n");
        assert!(found.contains("`database[0].url`") && found.contains(reason), "{url}: {found}");
        assert!(!found.contains("s3cret"), "{found}");
    }
    let found = complaints(&file(DATABASE, "amqp://u:s3cret@mq1,/%2f"), &[]).join("\n");
    assert!(found.contains("`amqp.url`") && found.contains("empty host"), "{found}");
}
