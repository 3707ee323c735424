//! `duetime schedule`: calendars that make tasks, their next fire times, pause and resume.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use common::{
    schedule::{self, When},
    time::UnixMicros,
    wire::{ScheduleList, ScheduleView, TaskView},
};
use reqwest::Method;
use serde_json::value::{RawValue, to_raw_value};

use super::{
    client::{Request, path_part},
    distinct::require_distinct,
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, say},
    pages::PageArgs,
    print,
};
use crate::clock;

/// The subcommands that act on schedules.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List schedules by name.
    #[command(after_help = "Example:\n  duetime schedule list")]
    List(Invocation<PageArgs>),
    /// Show a schedule.
    #[command(after_help = "Example:\n  duetime schedule get nightly")]
    Get(Invocation<One>),
    /// Set a schedule as a whole: omitted fields get their defaults.
    #[command(
        after_help = "Examples:\n  duetime schedule put nightly queue=reports cron='0 3 * * *' time_zone=Europe/Berlin\n  \
                            duetime schedule put pulse queue=health every_ms=5000 overlap=allow payload='{\"deep\":true}'"
    )]
    Put(Invocation<Put>),
    /// Forget a schedule; tasks already made stay.
    #[command(after_help = "Example:\n  duetime schedule delete nightly")]
    Delete(Invocation<One>),
    /// Stop a schedule; fire times during the pause are not made up.
    #[command(after_help = "Example:\n  duetime schedule pause nightly")]
    Pause(Invocation<One>),
    /// Start a schedule again.
    #[command(after_help = "Example:\n  duetime schedule resume nightly")]
    Resume(Invocation<One>),
    /// Make a task of a schedule now, outside its calendar.
    #[command(after_help = "Example:\n  duetime schedule run nightly")]
    Run(Invocation<One>),
    /// Show when a schedule fires next.
    #[command(after_help = "Example:\n  duetime schedule next nightly --count 20")]
    Next(Invocation<Next>),
}

/// One schedule.
#[derive(Debug, Args)]
pub struct One {
    #[arg(value_parser = name)]
    name: String,
}

/// The fields of a schedule.
#[derive(Debug, Args)]
pub struct Put {
    #[command(flatten)]
    schedule: One,
    /// Field and its value: JSON, or bare words taken as text.
    #[arg(required = true, value_name = "FIELD=VALUE", value_parser = field)]
    fields: Vec<(String, Box<RawValue>)>,
}

/// How many fire times to show.
#[derive(Debug, Args)]
pub struct Next {
    #[command(flatten)]
    schedule: One,
    /// How many fire times, up to 100.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    count: u32,
}

fn name(text: &str) -> Result<String, String> {
    schedule::check_name(text).map_err(|error| error.to_string())?;
    path_part(text)
}

/// Parses `name=value`. JSON is sent as written; a payload keeps every blank.
fn field(text: &str) -> Result<(String, Box<RawValue>), String> {
    let (field, value) = text.split_once('=').ok_or("write it FIELD=VALUE")?;
    let json = serde_json::from_str(value).or_else(|_| to_raw_value(value));
    Ok((field.to_owned(), json.map_err(|error| error.to_string())?))
}

pub(super) async fn schedule(command: &Command) -> Result<(), Error> {
    match command {
        Command::List(invocation) => {
            PageArgs::print(invocation, "schedules", |page| {
                Ok(table(&page.read::<ScheduleList>()?.schedules, clock::now()))
            })
            .await
        }
        Command::Get(invocation) => {
            let answer = invocation.client()?.send(&Request::get(&path(&invocation.args))).await?;
            invocation.print(&answer, |answer| Ok(sheet(&answer.read()?)))
        }
        Command::Put(invocation) => put(invocation).await,
        Command::Delete(invocation) => {
            invocation.client()?.send(&Request::new(Method::DELETE, &path(&invocation.args))).await?;
            // The API's answer has no body, so JSON output prints nothing either.
            if invocation.form() == Form::Text {
                say(format_args!("{}  deleted", invocation.args.name));
            }
            Ok(())
        }
        Command::Pause(invocation) => turn(invocation, "pause").await,
        Command::Resume(invocation) => turn(invocation, "resume").await,
        Command::Run(invocation) => {
            let answer = invocation.client()?.send(&Request::post(&verb(&invocation.args, "run"))).await?;
            invocation.print(&answer, |answer| {
                let task: TaskView = answer.read()?;
                Ok(format!("{}  {}", task.id, task.state))
            })
        }
        Command::Next(invocation) => next(invocation).await,
    }
}

fn path(one: &One) -> [&str; 3] {
    ["v1", "schedules", &one.name]
}

fn verb<'a>(one: &'a One, verb: &'a str) -> [&'a str; 4] {
    ["v1", "schedules", &one.name, verb]
}

async fn put(invocation: &Invocation<Put>) -> Result<(), Error> {
    let body = written(&invocation.args.fields)?;
    let answer =
        invocation.client()?.send(&Request::new(Method::PUT, &path(&invocation.args.schedule)).body(body)).await?;
    invocation.print(&answer, |answer| Ok(sheet(&answer.read()?)))
}

fn written(fields: &[(String, Box<RawValue>)]) -> Result<String, Error> {
    require_distinct("field", fields)?;
    let fields: BTreeMap<&str, &RawValue> =
        fields.iter().map(|(field, value)| (field.as_str(), value.as_ref())).collect();
    serde_json::to_string(&fields).map_err(Error::Unwritable)
}

async fn turn(invocation: &Invocation<One>, word: &str) -> Result<(), Error> {
    let answer = invocation.client()?.send(&Request::post(&verb(&invocation.args, word))).await?;
    invocation.print(&answer, |answer| {
        let schedule: ScheduleView = answer.read()?;
        Ok(format!("{}  {}", schedule.name, standing(&schedule, clock::now())))
    })
}

async fn next(invocation: &Invocation<Next>) -> Result<(), Error> {
    let query = vec![("next", invocation.args.count.to_string())];
    let answer = invocation.client()?.send(&Request::get(&path(&invocation.args.schedule)).query(query)).await?;
    invocation.print(&answer, |answer| {
        let (schedule, now): (ScheduleView, _) = (answer.read()?, clock::now());
        let times: Vec<String> = schedule.next_fire_times.iter().map(|at| moment::shown(*at, now)).collect();
        Ok(if times.is_empty() { standing(&schedule, now) } else { times.join("\n") })
    })
}

fn calendar(when: &When) -> String {
    match when {
        When::Cron { cron, time_zone } => format!("{cron}  {time_zone}"),
        When::Every { every_ms } => {
            format!("every {}", humantime::format_duration(std::time::Duration::from_millis(every_ms.unsigned_abs())))
        }
    }
}

/// The next fire time, or the reason why there is none.
fn standing(schedule: &ScheduleView, now: UnixMicros) -> String {
    if schedule.paused {
        return "paused".to_owned();
    }
    schedule.next_fire_times.first().map_or_else(|| "never fires again".to_owned(), |next| moment::shown(*next, now))
}

fn table(schedules: &[ScheduleView], now: UnixMicros) -> String {
    let row = |schedule: &ScheduleView| {
        let last = schedule.last_fire_at.map_or_else(|| "-".to_owned(), |last| moment::distance(last, now));
        vec![
            schedule.name.to_string(),
            schedule.rules.queue.to_string(),
            calendar(&schedule.rules.when),
            standing(schedule, now),
            last,
        ]
    };
    print::table(&["NAME", "QUEUE", "CALENDAR", "NEXT", "LAST"], schedules.iter().map(row).collect())
}

fn sheet(schedule: &ScheduleView) -> String {
    let now = clock::now();
    let at = |moment: Option<UnixMicros>| moment.map(|moment| moment::shown(moment, now));
    let json = |value: Result<String, serde_json::Error>| value.ok();
    let rules = &schedule.rules;
    let payload = schedule.payload.as_ref().map(|payload| payload.get().to_owned());
    print::sheet(vec![
        ("name", Some(schedule.name.to_string())),
        ("queue", Some(rules.queue.to_string())),
        ("calendar", Some(calendar(&rules.when))),
        ("next", Some(standing(schedule, now))),
        ("last", at(schedule.last_fire_at)),
        ("last task", schedule.last_task_id.map(|id| id.to_string())),
        ("waiting since", at(schedule.buffered_at)),
        ("overlap", json(serde_json::to_string(&rules.overlap)).map(|text| text.trim_matches('"').to_owned())),
        ("catch_up_ms", Some(rules.catch_up_ms.to_string())),
        ("payload", payload.or_else(|| schedule.payload_base64.clone())),
        ("content_type", Some(rules.content_type.clone())),
        ("headers", json(serde_json::to_string(&rules.headers)).filter(|_| !rules.headers.is_empty())),
        ("priority", Some(rules.priority.to_string())),
        ("partition_key", rules.partition_key.clone()),
        ("max_attempts", rules.max_attempts.map(|most| most.to_string())),
        ("timeout_ms", rules.timeout_ms.map(|timeout_ms| timeout_ms.to_string())),
        ("retry", rules.retry.and_then(|retry| json(serde_json::to_string(&retry)))),
        ("expires_after_ms", rules.expires_after_ms.map(|wait_ms| wait_ms.to_string())),
        ("created", at(Some(schedule.created_at))),
        ("updated", at(Some(schedule.updated_at))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(json: &str) -> ScheduleView {
        let text = format!(
            r#"{{"name":"s","queue":"q","catch_up_ms":60000,"content_type":"application/json","priority":3,
                "created_at":0,"updated_at":0,{json}}}"#
        );
        serde_json::from_str(&text).expect("a schedule")
    }

    #[test]
    fn a_value_is_json_as_it_is_written_or_words() {
        let read = |text: &str| field(text).map(|(field, value)| (field, value.get().to_owned()));
        assert_eq!(read("cron=0 3 * * *"), Ok(("cron".to_owned(), "\"0 3 * * *\"".to_owned())));
        assert_eq!(read("payload={\"b\": 1.0}"), Ok(("payload".to_owned(), "{\"b\": 1.0}".to_owned())));
        assert_eq!(read("every_ms=1000"), Ok(("every_ms".to_owned(), "1000".to_owned())));
        assert!(read("cron").is_err());
        assert!(name("..").is_err() && name("a b").is_err() && name("a.b").is_ok());
    }

    #[test]
    fn a_field_that_is_given_twice_is_a_mistake_of_the_caller() {
        let body = |texts: &[&str]| {
            let fields: Vec<_> = texts.iter().map(|text| field(text).expect("a field")).collect();
            written(&fields)
        };
        assert_eq!(body(&["queue=a", "every_ms=5"]).expect("a body"), r#"{"every_ms":5,"queue":"a"}"#);
        assert_eq!(body(&["queue=a", "every_ms=5", "queue=b"]).expect_err("refused").exit_code(), 2);
    }

    #[test]
    fn a_list_says_when_each_fires_next_or_why_not() {
        let now = UnixMicros::new(0);
        let shown = table(
            &[
                view(r#""every_ms":90000,"next_fire_times":[90000],"paused":false"#),
                view(r#""cron":"@daily","time_zone":"Europe/Berlin","next_fire_times":[],"paused":true"#),
            ],
            now,
        );
        assert!(shown.contains("every 1m 30s") && shown.contains("(in 90 s)"), "{shown}");
        assert!(shown.contains("@daily  Europe/Berlin") && shown.contains("paused"), "{shown}");
    }
}
