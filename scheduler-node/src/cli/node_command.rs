//! The commands that a running node answers.

use clap::Subcommand;

use super::{
    audit, bulk, cluster, database, error::Error, export, import, invocation::Invocation, list, output, queue,
    schedule, shard, submit, task, top,
};

/// The commands that a running node answers.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Submit a task, or many from a file.
    #[command(after_help = "Examples:\n  duetime submit mails --payload '{\"to\":\"ann\"}' --delay 30m\n  \
                            duetime submit --batch tasks.jsonl")]
    Submit(Invocation<submit::Args>),
    /// Show a task with its attempts and its result.
    #[command(
        after_help = "Example:\n  duetime get 0199f3a0-0000-7000-8000-000000000005\n  duetime get --queue mails --key order-7"
    )]
    Get(Invocation<task::One>),
    /// List tasks, a page at a time or all of them.
    #[command(after_help = "Example:\n  duetime list --queue mails --state dead --all --output jsonl")]
    List(Invocation<list::Args>),
    /// Cancel tasks. `cancelled`: nothing is delivered afterwards.
    #[command(after_help = "Example:\n  duetime cancel 0199f3a0-0000-7000-8000-000000000005")]
    Cancel(Invocation<task::TaskIds>),
    /// Cancel tasks, and ask the consumers of those in flight to stop. `stopping`: the consumer learns of it with its
    /// next heartbeat.
    #[command(after_help = "Example:\n  duetime stop 0199f3a0-0000-7000-8000-000000000005")]
    Stop(Invocation<task::TaskIds>),
    /// Move a task to another due time.
    #[command(after_help = "Example:\n  duetime move 0199f3a0-0000-7000-8000-000000000005 --at 2030-01-31T09:00:00Z")]
    Move(Invocation<task::Move>),
    /// Make tasks due now.
    #[command(after_help = "Example:\n  duetime run 0199f3a0-0000-7000-8000-000000000005")]
    Run(Invocation<task::TaskIds>),
    /// Try dead tasks again, with a new budget of attempts.
    #[command(after_help = "Example:\n  duetime retry 0199f3a0-0000-7000-8000-000000000005")]
    Retry(Invocation<task::TaskIds>),
    /// Report the outcome of an attempt, as its consumer would.
    #[command(
        after_help = "Example:\n  duetime result 0199f3a0-0000-7000-8000-000000000005 --attempt 1 --status succeeded"
    )]
    Result(Invocation<task::Report>),
    /// Apply one action to all tasks that a filter matches.
    #[command(
        after_help = "Examples:\n  duetime bulk cancel --queue mails --due-before 2030-01-01T00:00:00Z --dry-run\n  \
                            duetime bulk move --queue mails --shift 2h --yes\n  \
                            duetime bulk retry --queue mails --error 'no route' --yes"
    )]
    Bulk(Invocation<bulk::Args>),
    /// Print whole tasks, one a line, for `import`.
    #[command(after_help = "Example:\n  duetime export --queue mails > mails.jsonl")]
    Export(Invocation<export::Args>),
    /// Submit exported tasks again, here or to another cluster.
    #[command(after_help = "Example:\n  duetime import mails.jsonl --refused refused.jsonl")]
    Import(Invocation<import::Args>),
    /// Queues: their policies and counts, pause and resume.
    #[command(subcommand)]
    Queue(queue::Command),
    /// Schedules: calendars that make tasks.
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Show who did what, newest first.
    #[command(after_help = "Examples:\n  duetime audit --what queue.pause --after 2030-01-31T00:00:00Z\n  \
                            duetime audit --all --after 2030-01-31T00:00:00Z --output jsonl")]
    Audit(Invocation<audit::Args>),
    /// Show the nodes, the master and the shards on their way, or all shards; drain a node.
    #[command(
        after_help = "Examples:\n  duetime cluster --url http://10.0.0.5:8080\n  duetime cluster drain node-2 --wait"
    )]
    Cluster(cluster::Args),
    /// Shards: their places, moves between databases.
    #[command(subcommand)]
    Shard(shard::Command),
    /// Databases: list, drain, remove; accept the loss of commits after a failover.
    #[command(subcommand)]
    Database(database::Command),
    /// Watch the cluster at work; q ends it.
    #[command(after_help = "Examples:\n  duetime top\n  duetime top --once --output json")]
    Top(Invocation<top::Args>),
}

impl NodeCommand {
    /// Runs the command against a node and prints the answer.
    pub async fn run(&self) -> Result<(), Error> {
        if self.acts_in_steps() {
            output::go_on_without_reader();
        }
        match self {
            Self::Submit(invocation) => submit::submit(invocation).await,
            Self::Get(invocation) => task::get(invocation).await,
            Self::List(invocation) => list::list(invocation).await,
            Self::Cancel(invocation) => task::cancel(invocation).await,
            Self::Stop(invocation) => task::stop(invocation).await,
            Self::Move(invocation) => task::shift(invocation).await,
            Self::Run(invocation) => task::run(invocation).await,
            Self::Retry(invocation) => task::retry(invocation).await,
            Self::Result(invocation) => task::report(invocation).await,
            Self::Bulk(invocation) => bulk::bulk(invocation).await,
            Self::Export(invocation) => export::export(invocation).await,
            Self::Import(invocation) => import::import(invocation).await,
            Self::Queue(command) => queue::queue(command).await,
            Self::Schedule(command) => schedule::schedule(command).await,
            Self::Audit(invocation) => audit::audit(invocation).await,
            Self::Cluster(args) => cluster::cluster(args).await,
            Self::Shard(command) => shard::shard(command).await,
            Self::Database(command) => database::database(command).await,
            Self::Top(invocation) => top::top(invocation).await,
        }
    }

    /// Whether the command may print between two changes.
    const fn acts_in_steps(&self) -> bool {
        matches!(
            self,
            Self::Submit(_)
                | Self::Cancel(_)
                | Self::Stop(_)
                | Self::Run(_)
                | Self::Retry(_)
                | Self::Bulk(_)
                | Self::Import(_)
        )
    }
}
