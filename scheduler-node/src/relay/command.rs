//! Runs of a command on this machine: without a shell, the payload on standard input, the result on standard output.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use common::{
    relay::call::{self, CallOutcome, MAX_OUTPUT_BYTES},
    task::report::{ReportStatus, ResultBody},
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
};
use tokio_util::sync::CancellationToken;

use super::{finished_call::FinishedCall, identity::Identity};
use crate::broker::Task;

/// The time between the signal to terminate and the kill of a command that takes too long.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two looks for processes that a command left behind.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The longest wait for an output that is held open by processes which a command left behind.
const LINGERS: Duration = Duration::from_secs(1);
/// The most bytes shown of a failed command's error output, from its end.
const SHOWN_BYTES: usize = 1_000;
const READ_BYTES: usize = 8 << 10;
/// The variables that a command gets from the relay's environment, besides those that were asked for. Any other
/// may be a secret.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// The standard streams of a child: in, out, error.
type Ends = (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>);

/// The command to run.
#[derive(Debug)]
pub struct Command {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Further variables of the relay's environment that the command gets.
    pub environment: Vec<String>,
    /// `None`: the relay's own user.
    pub identity: Option<Identity>,
    pub timeout: Duration,
}

/// The process group of a command, as long as it has not ended. Dropping it kills the group.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // The call fails only when no process is left.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Whether a process is left. Only for a group whose command has been waited for.
    fn exists(&self) -> bool {
        self.0.is_some_and(|pid| {
            // The first process of a container inherits what a command leaves behind. Nothing else collects its end.
            while let Ok(Some(_)) = waitpgid(pid, WaitOptions::NOHANG) {}
            test_kill_process_group(pid).is_ok()
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

impl Command {
    pub(super) async fn call(&self, queue: &str, handed: &Task) -> FinishedCall {
        let mut child = match self.spawn(queue, handed) {
            Ok(child) => child,
            Err(error) => {
                return FinishedCall::not_called(format!("{} cannot be run: {error}", self.program.display()));
            }
        };
        let mut group = Group::of(&child);
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let ends = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let talk = talk(ends, &handed.body, &mut output, &mut errors);
        let exited = CancellationToken::new();
        let talk = async {
            tokio::select! {
                () = talk => true,
                () = async { exited.cancelled().await; tokio::time::sleep(LINGERS).await } => false,
            }
        };
        let wait = async {
            let status = self.wait(&mut child, &group).await;
            exited.cancel();
            status
        };
        let (status, is_all_said) = tokio::join!(wait, talk);
        if is_all_said {
            // No process is left, and the system may soon give the group's number to another.
            group.0 = None;
        }
        ended(status, self.timeout, &output, &errors)
    }

    fn spawn(&self, queue: &str, handed: &Task) -> std::io::Result<Child> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear();
        for name in PASSED_ON.into_iter().chain(self.environment.iter().map(String::as_str)) {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Some(Identity { uid, gid, account }) = &self.identity {
            command.uid(*uid).gid(*gid);
            let (name, home) = account.as_ref().map_or(("", "/"), |(name, home)| (name.as_str(), home.as_str()));
            command.env("HOME", home).env("USER", name).env("LOGNAME", name);
        }
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        for (name, value) in [
            ("DUETIME_QUEUE", Some(queue.to_owned())),
            ("DUETIME_TASK_ID", handed.id.clone()),
            ("DUETIME_ATTEMPT", number(handed.attempt)),
            ("DUETIME_DUE_MS", number(handed.due_ms)),
            ("DUETIME_KEY", handed.key.clone()),
            ("DUETIME_PARTITION_KEY", handed.partition_key.clone()),
            ("DUETIME_CONTENT_TYPE", handed.content_type.clone()),
            ("TRACEPARENT", handed.traceparent.clone()),
            ("TRACESTATE", handed.tracestate.clone()),
        ] {
            // No variable can hold a NUL.
            if let Some(value) = value.filter(|value| !value.contains('\0')) {
                command.env(name, value);
            }
        }
        command.process_group(0).kill_on_drop(true).spawn()
    }

    /// Waits for the command. `None`: it exceeded its time limit and was ended.
    async fn wait(&self, child: &mut Child, group: &Group) -> Option<std::io::Result<ExitStatus>> {
        if let Ok(status) = tokio::time::timeout(self.timeout, child.wait()).await {
            return Some(status);
        }
        group.signal(Signal::TERM);
        let all_ended = async {
            let _ = child.wait().await;
            // What the command started may take as long, and need not hold any of the streams.
            while group.exists() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(ENDS_WITHIN, all_ended).await.is_err() {
            group.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        None
    }
}

/// Hands the command the payload and reads its output, until it has closed all three streams.
async fn talk(ends: Ends, payload: &[u8], output: &mut Vec<u8>, errors: &mut Vec<u8>) {
    let (stdin, stdout, stderr) = ends;
    let give = async {
        if let Some(mut stdin) = stdin {
            // The command need not read everything, or anything.
            let _ = stdin.write_all(payload).await;
        }
    };
    // One byte more shows that the output exceeds the limit.
    let first = take(stdout, |bytes| {
        let room = (MAX_OUTPUT_BYTES + 1).saturating_sub(output.len());
        output.extend_from_slice(&bytes[..bytes.len().min(room)]);
    });
    let last = take(stderr, |bytes| {
        errors.extend_from_slice(bytes);
        errors.drain(..errors.len().saturating_sub(SHOWN_BYTES));
    });
    tokio::join!(give, first, last);
}

async fn take(from: Option<impl AsyncRead + Unpin>, mut keep: impl FnMut(&[u8])) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        keep(&buffer[..bytes]);
    }
}

fn ended(status: Option<std::io::Result<ExitStatus>>, timeout: Duration, output: &[u8], errors: &[u8]) -> FinishedCall {
    let errors = call::text(errors, SHOWN_BYTES);
    let failed = |why: String| {
        let status_msg = Some(format!("{why}: {}", errors.trim()));
        let answer = CallOutcome { status: ReportStatus::Failed, retry_in_ms: None, is_healthy: true };
        FinishedCall {
            report: ResultBody { status_msg, ..ResultBody::new(answer.status) },
            is_healthy: answer.is_healthy,
        }
    };
    let status = match status {
        Some(Ok(status)) => status,
        Some(Err(error)) => return failed(format!("its outcome is unknown: {error}")),
        None => return failed(format!("it took longer than {} ms", timeout.as_millis())),
    };
    let mut ended = FinishedCall::new(call::of_exit(status.code()));
    ended.report.status_code = status.code().map(i64::from);
    match ended.report.status {
        ReportStatus::Succeeded => ended.report.result = call::result(output),
        _ => ended.report.status_msg = Some(format!("{status}: {}", errors.trim())),
    }
    ended
}
