use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use lapin::{Connection, ConnectionProperties};
use sqlx::Connection as _;

use super::{account::Account, process::Launch, *};

/// Set where a test runs again, with the variables of a developer's shell.
const IN_A_SHELL: &str = "SANDBOX_TEST_IN_A_SHELL";

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_what_was_committed_over_a_kill() {
    let server = Postgres::start(&scratch::fresh("postgres"), Tether::Tethered).await.unwrap();
    let url = server.create_database("kept").await.unwrap();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE t AS SELECT 7 AS n").execute(&mut connection).await.unwrap();
    server.kill();
    sqlx::raw_sql("SELECT 1").execute(&mut connection).await.unwrap_err();
    server.restart().await.unwrap();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let n: i32 = sqlx::query_scalar("SELECT n FROM t").fetch_one(&mut connection).await.unwrap();
    assert_eq!(n, 7);
    server.stop_immediately().await.unwrap();
    server.restart().await.unwrap();
    let pid = server.pid().unwrap();
    drop(server);
    assert!(!exists(pid));
}

/// Whether a process works in this folder, or below it.
fn is_used(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .map(|process| fs::read_link(process.path().join("cwd")))
        .any(|cwd| cwd.is_ok_and(|cwd| cwd.starts_with(folder)))
}

async fn until(what: &str, check: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_starts_in_a_folder_whose_initdb_was_killed() {
    let folder = scratch::fresh("postgres");
    let begun = || ["data", "data.new"].iter().any(|data| folder.join(data).join("PG_VERSION").exists());
    tokio::select! {
        server = Postgres::start(&folder, Tether::Tethered) => panic!("initdb was not interrupted: {server:?}"),
        // Dropping the start kills initdb, which writes this file first.
        () = until("initdb begins", begun) => {}
    }
    // One of its children may live a moment longer.
    until("initdb has ended", || !is_used(&folder)).await;
    let server = Postgres::start(&folder, Tether::Tethered).await.unwrap();
    assert!(!folder.join("data.new").exists());
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_etcd_members_survive_the_loss_of_one() {
    let cluster = Etcd::start(&scratch::fresh("etcd"), 3, Tether::Tethered).await.unwrap();
    assert_eq!(cluster.endpoints().len(), 3);
    cluster.kill(0);
    let health = format!("{}/health", cluster.endpoints()[1]);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !crate::http::plain().get(&health).send().await.is_ok_and(|answer| answer.status().is_success()) {
        assert!(tokio::time::Instant::now() < deadline, "two of three members found no leader");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.restart_all().await.unwrap();
    let pids = cluster.pids();
    assert_eq!(pids.len(), 3);
    drop(cluster);
    assert!(!pids.into_iter().any(exists));
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbit_comes_back_on_its_port_with_its_virtual_hosts() {
    let broker = Rabbit::start(&scratch::fresh("rabbit"), Tether::Tethered).await.unwrap();
    let url = broker.add_vhost("mine").await.unwrap();
    Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    broker.kill();
    broker.restart().await.unwrap();
    Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    broker.retire_vhost("mine".into());
    let next = broker.add_vhost("next").await.unwrap();
    Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    broker.retire_vhost("next".into());
    broker.add_vhost("last").await.unwrap();
    Connection::connect(&next, ConnectionProperties::default()).await.unwrap();
    Connection::connect(&url, ConnectionProperties::default()).await.unwrap_err();
    broker.stop().await.unwrap();
    broker.restart().await.unwrap();
    let pids = broker.pids();
    drop(broker);
    assert!(!pids.into_iter().any(exists));
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbit_keeps_what_it_holds_when_its_port_is_taken() {
    let folder = scratch::fresh("rabbit");
    let broker = Rabbit::start(&folder, Tether::Tethered).await.unwrap();
    let port = broker.port();
    broker.add_vhost("kept").await.unwrap();
    broker.stop().await.unwrap();
    drop(broker);
    let _other = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let broker = Rabbit::start(&folder, Tether::Tethered).await.unwrap();
    assert_ne!(broker.port(), port);
    Connection::connect(&broker.url("kept"), ConnectionProperties::default()).await.unwrap();
}

#[test]
fn the_temporary_folder_lets_the_stores_users_through() {
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(scratch()).unwrap().permissions().mode() & 0o777, 0o755);
}

/// The variables for `duetime` and the stores among those that `env` printed.
fn variables(printed: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&printed.stdout);
    let begins = ["DUETIME_", "PG", "OTEL_", "ETCD", "RABBITMQ_", "SSL_CERT_"];
    let is_theirs = |line: &&str| begins.iter().any(|begin| line.starts_with(begin));
    let mut lines: Vec<String> = text.lines().filter(is_theirs).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn no_program_gets_what_the_callers_shell_says_to_duetime_and_the_stores() {
    if std::env::var_os(IN_A_SHELL).is_none() {
        let names = [
            "DUETIME_DATABASE__0__URL",
            "DUETIME_DATABASE_0_URL",
            "DUETIME_CONFIG",
            "DUETIME_URL",
            "PGSSLMODE",
            "PGOPTIONS",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "ETCD_NAME",
            "ETCDCTL_ENDPOINTS",
            "RABBITMQ_NODENAME",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
        ];
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::tests::no_program_gets_what_the_callers_shell_says_to_duetime_and_the_stores"])
            .env(IN_A_SHELL, "yes")
            .envs(["DUETIME_SEEDED_BUG", "ETCD_UNSUPPORTED_ARCH"].map(|name| (name, "kept")))
            .envs(names.map(|name| (name, "production")))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let own = ("DUETIME_DATABASE__0__URL", "own");
    let run = binary::run_program(Path::new("env"), &[], &[own], "").await.unwrap();
    let launch = Launch {
        name: "env".into(),
        program: "env".into(),
        args: Vec::new(),
        env: vec![(own.0.into(), own.1.into())],
        account: Account::Own,
        folder: "/".into(),
        log: "/dev/null".into(),
        tether: Tether::Tethered,
        on_death: Signal::Kill,
    };
    let launched = launch.command().unwrap().output().unwrap();
    let wanted = ["DUETIME_DATABASE__0__URL=own", "DUETIME_SEEDED_BUG=kept", "ETCD_UNSUPPORTED_ARCH=kept"];
    assert_eq!([variables(&run), variables(&launched)], [wanted, wanted]);
}
