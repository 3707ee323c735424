//! The commands that ask a running node, and the parts they share.

use clap::{Args, Subcommand};

use super::{
    Error, Form, Output,
    access::Access,
    audit, bulk,
    client::{Answer, Client},
    cluster, export, import, list, queue, say, schedule, submit, task, top,
};

/// The commands that are answered by a running node.
#[derive(Debug, Subcommand)]
pub enum Ask {
    /// Submit a task, or many from a file.
    #[command(after_help = "Examples:\n  duetime submit mails --payload '{\"to\":\"ann\"}' --delay 30m\n  \
                            duetime submit --batch tasks.jsonl")]
    Submit(Asked<submit::Wish>),
    /// Show a task with its attempts and its result.
    #[command(
        after_help = "Example:\n  duetime get 0199f3a0-0000-7000-8000-000000000005\n  duetime get --queue mails --key order-7"
    )]
    Get(Asked<task::One>),
    /// List tasks, a page at a time or all of them.
    #[command(after_help = "Example:\n  duetime list --queue mails --state dead --all --output jsonl")]
    List(Asked<list::Wish>),
    /// Cancel tasks. `cancelled`: nothing is delivered afterwards.
    #[command(after_help = "Example:\n  duetime cancel 0199f3a0-0000-7000-8000-000000000005")]
    Cancel(Asked<task::Many>),
    /// Cancel tasks, and ask the consumers of those in flight to stop. `stopping`: the consumer learns of it with its
    /// next heartbeat.
    #[command(after_help = "Example:\n  duetime stop 0199f3a0-0000-7000-8000-000000000005")]
    Stop(Asked<task::Many>),
    /// Move a task to another due time.
    #[command(after_help = "Example:\n  duetime move 0199f3a0-0000-7000-8000-000000000005 --at 2030-01-31T09:00:00Z")]
    Move(Asked<task::Move>),
    /// Make tasks due now.
    #[command(after_help = "Example:\n  duetime run 0199f3a0-0000-7000-8000-000000000005")]
    Run(Asked<task::Many>),
    /// Try dead tasks again, with a new budget of attempts.
    #[command(after_help = "Example:\n  duetime retry 0199f3a0-0000-7000-8000-000000000005")]
    Retry(Asked<task::Many>),
    /// Report the outcome of an attempt, as its consumer would.
    #[command(
        after_help = "Example:\n  duetime result 0199f3a0-0000-7000-8000-000000000005 --attempt 1 --status succeeded"
    )]
    Result(Asked<task::Report>),
    /// Apply one action to all tasks that a filter matches.
    #[command(
        after_help = "Examples:\n  duetime bulk cancel --queue mails --due-before 2030-01-01T00:00:00Z --dry-run\n  \
                            duetime bulk move --queue mails --shift 2h --yes\n  \
                            duetime bulk retry --queue mails --error 'no route' --yes"
    )]
    Bulk(Asked<bulk::Wish>),
    /// Print whole tasks, one a line, for `import`.
    #[command(after_help = "Example:\n  duetime export --queue mails > mails.jsonl")]
    Export(Asked<export::Wish>),
    /// Submit exported tasks again, here or to another cluster.
    #[command(after_help = "Example:\n  duetime import mails.jsonl --refused refused.jsonl")]
    Import(Asked<import::Wish>),
    /// Queues: their policies and counts, pause and resume.
    #[command(subcommand)]
    Queue(queue::Command),
    /// Schedules: calendars that make tasks.
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Show who did what, newest first.
    #[command(after_help = "Example:\n  duetime audit --what queue.pause --after 2030-01-31T00:00:00Z")]
    Audit(Asked<audit::Wish>),
    /// Show the nodes, the master and the owner of each shard; drain a node.
    #[command(
        after_help = "Examples:\n  duetime cluster --url http://10.0.0.5:8080\n  duetime cluster drain node-2 --wait"
    )]
    Cluster(cluster::Wish),
    /// Watch the cluster at work; q ends it.
    #[command(after_help = "Examples:\n  duetime top\n  duetime top --once --output json")]
    Top(Asked<top::Wish>),
}

/// A command's own options, the nodes it asks, and the form of its output.
#[derive(Debug, Args)]
pub struct Asked<W: Args> {
    #[command(flatten)]
    pub(super) wish: W,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    output: Output,
}

impl<W: Args> Asked<W> {
    pub(super) fn client(&self) -> Result<Client, Error> {
        self.access.client()
    }

    pub(super) fn form(&self) -> Form {
        self.output.output
    }

    /// Prints an answer: unchanged as JSON, or rendered by `text` for a person.
    pub(super) fn print(
        &self,
        answer: &Answer,
        text: impl FnOnce(&Answer) -> Result<String, Error>,
    ) -> Result<(), Error> {
        match self.form() {
            Form::Text => say(text(answer)?),
            Form::Json | Form::Jsonl => say(&answer.text),
        }
        Ok(())
    }
}

/// Runs the command against a node and prints the answer.
pub async fn ask(question: &Ask) -> Result<(), Error> {
    match question {
        Ask::Submit(asked) => submit::submit(asked).await,
        Ask::Get(asked) => task::get(asked).await,
        Ask::List(asked) => list::list(asked).await,
        Ask::Cancel(asked) => task::cancel(asked).await,
        Ask::Stop(asked) => task::stop(asked).await,
        Ask::Move(asked) => task::shift(asked).await,
        Ask::Run(asked) => task::run(asked).await,
        Ask::Retry(asked) => task::retry(asked).await,
        Ask::Result(asked) => task::report(asked).await,
        Ask::Bulk(asked) => bulk::bulk(asked).await,
        Ask::Export(asked) => export::export(asked).await,
        Ask::Import(asked) => import::import(asked).await,
        Ask::Queue(command) => queue::queue(command).await,
        Ask::Schedule(command) => schedule::schedule(command).await,
        Ask::Audit(asked) => audit::audit(asked).await,
        Ask::Cluster(wish) => cluster::cluster(wish).await,
        Ask::Top(asked) => top::top(asked).await,
    }
}
