//! One cause while it is played: its stage, and when each of its alerts fired and cleared.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use integration_tests::{
    client::Client,
    sandbox::{Prometheus, Sandbox},
};
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::Instant;

/// An alert that has not fired within this time will not fire. A loop counts as stalled after 60 s.
const FIRES_WITHIN: Duration = Duration::from_secs(90);
/// The window of a rule, and the time the cluster takes to recover.
const SILENT_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The limit for a step of a cause, on a busy machine.
const HAPPENS_WITHIN: Duration = Duration::from_secs(60);

/// Waits until `check` holds, which a cause needs before it goes on.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) -> Result<()> {
    let deadline = Instant::now() + HAPPENS_WITHIN;
    while !check().await {
        ensure!(Instant::now() < deadline, "{what}: not within {HAPPENS_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// A cause, the alerts that it sets off, and how to inject and heal it.
pub(super) struct Cause {
    /// Names as Prometheus gives them; an alert about a queue has the queue behind its name.
    pub alerts: &'static [&'static str],
    pub says: &'static str,
    /// Injects the cause, waits for the alerts, heals.
    pub play: for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, Result<()>>,
}

/// The cluster and the Prometheus on which all causes are played.
pub(super) struct Stage {
    pub cluster: Sandbox,
    pub prometheus: Prometheus,
    /// The targets that Prometheus scrapes: the nodes in order, and the two ports below.
    pub targets: Vec<String>,
    /// No server listens here, until a cause puts a node of another cluster or another version there.
    pub stranger_port: u16,
    pub impostor_port: u16,
}

/// The time from the cause to the alert's firing, and from the healing to its clearing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    pub fired: Option<Duration>,
    pub resolved: Option<Duration>,
}

/// One cause at work.
pub(super) struct Scene<'a> {
    pub stage: &'a Stage,
    pub cause: &'static Cause,
    injected_at: Mutex<Instant>,
    healing_since: Mutex<Instant>,
    courses: Mutex<BTreeMap<&'static str, Course>>,
    /// Other alerts that fired meanwhile.
    beside: Mutex<BTreeSet<String>>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(stage: &'a Stage, cause: &'static Cause) -> Self {
        Self {
            stage,
            cause,
            courses: Mutex::new(cause.alerts.iter().map(|alert| (*alert, Course::default())).collect()),
            injected_at: Mutex::new(Instant::now()),
            healing_since: Mutex::new(Instant::now()),
            beside: Mutex::default(),
        }
    }

    pub(super) fn cluster(&self) -> &Sandbox {
        &self.stage.cluster
    }

    pub(super) fn client(&self) -> Result<Client> {
        self.cluster().live()
    }

    /// Notes that the cause is present from now on.
    pub(super) fn injected(&self) {
        *self.injected_at.lock() = Instant::now();
    }

    /// Waits until each alert has fired at some time since the cause was injected, or the limit has passed. The
    /// healing begins after it.
    pub(super) async fn fired(&self) {
        let deadline = Instant::now() + FIRES_WITHIN;
        while Instant::now() < deadline && self.courses.lock().values().any(|course| course.fired.is_none()) {
            self.look().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        *self.healing_since.lock() = Instant::now();
    }

    /// Like `fired`, while `cause`, which never ends by itself, runs.
    pub(super) async fn fired_during(&self, cause: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            () = self.fired() => Ok(()),
            ended = cause => ended,
        }
    }

    /// Waits until the alerts that fired have cleared, or the limit has passed: the cause is gone now.
    pub(super) async fn resolved(&self) {
        let deadline = Instant::now() + SILENT_WITHIN;
        while Instant::now() < deadline {
            if self.look().await.is_some_and(|firing| self.all_silent(&firing)) {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Notes which of the alerts that fired have cleared; returns whether all have.
    fn all_silent(&self, firing: &BTreeSet<String>) -> bool {
        let healing_for = self.healing_since.lock().elapsed();
        let mut courses = self.courses.lock();
        for (alert, course) in courses.iter_mut().filter(|(_, course)| course.fired.is_some()) {
            if !firing.contains(*alert) {
                course.resolved.get_or_insert(healing_for);
            }
        }
        courses.values().all(|course| course.fired.is_none() || course.resolved.is_some())
    }

    /// Queries Prometheus once and notes the firing alerts; `None` when it did not answer in time.
    async fn look(&self) -> Option<BTreeSet<String>> {
        let firing = self.stage.prometheus.firing().await.ok()?;
        let since = self.injected_at.lock().elapsed();
        let mut courses = self.courses.lock();
        for alert in &firing {
            match courses.get_mut(alert.as_str()) {
                Some(course) => {
                    course.fired.get_or_insert(since);
                }
                None => {
                    self.beside.lock().insert(alert.clone());
                }
            }
        }
        Some(firing)
    }

    pub(super) fn course(&self, alert: &str) -> Course {
        self.courses.lock().get(alert).copied().unwrap_or_default()
    }

    pub(super) fn beside(&self) -> BTreeSet<String> {
        self.beside.lock().clone()
    }

    /// A connection as the database's owner, who may lock tables and revoke privileges.
    pub(super) async fn database(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.cluster().database_url(0)).await?)
    }

    /// Runs statements one after another.
    pub(super) async fn sql(&self, statements: &str) -> Result<()> {
        let mut connection = self.database().await?;
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&mut connection)
            .await
            .with_context(|| statements.to_owned())?;
        Ok(connection.close().await?)
    }
}
