//! A private RabbitMQ.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lapin::{Connection, ConnectionProperties};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    account::Account,
    authority::Authority,
    process::{self, Launch, Process, Signal, Tether},
    programs, secret, shared,
};

const GREETS_WITHIN: Duration = Duration::from_secs(5);
const START_WITHIN: Duration = Duration::from_secs(240);
const PACKAGED: &str = "/usr/lib/rabbitmq/bin";

/// Erlang's schedulers spin while they wait, which they must not on a shared machine. The distribution port listens
/// on loopback only.
const ERLANG: &str = "-noinput +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}";

/// One broker with its own node name, cookie, name server (epmd) and ports, and no plugins. It survives `kill` and
/// comes back on the same port with its durable queues.
#[derive(Debug)]
pub struct Rabbit {
    folder: PathBuf,
    /// Its name in its cluster.
    name: String,
    programs: PathBuf,
    account: Account,
    port: u16,
    tls_port: Option<u16>,
    /// The folder of a plugin that is not RabbitMQ's own.
    plugin: Option<PathBuf>,
    distribution_port: u16,
    epmd_port: u16,
    tether: Tether,
    broker: Mutex<Option<Process>>,
    epmd: Mutex<Option<Process>>,
    /// Whether the name server is its own, and not that of another broker of its cluster.
    has_epmd: bool,
    /// Virtual hosts that no test needs any more. The next addition removes them all.
    retired: Mutex<Vec<String>>,
}

impl Rabbit {
    /// Sets up a broker in `folder`, or starts the one that already exists there.
    pub async fn start(folder: &Path, tether: Tether) -> Result<Self> {
        Self::start_with(folder, tether, None).await
    }

    /// Like `start`, but does not wait for its first answer, as [`Self::restart`] does.
    pub fn launched(folder: &Path, tether: Tether) -> Result<Self> {
        let broker = Self::in_folder(folder, tether, None)?;
        if let Err(error) = broker.launch_ended() {
            broker.kill_all();
            return Err(error);
        }
        Ok(broker)
    }

    /// Like `start`, with a port for TLS beside the plain one. There it accepts only clients with a certificate of
    /// `authority`. A client that asks for EXTERNAL becomes the user whom its certificate names.
    pub async fn start_encrypted(folder: &Path, tether: Tether, authority: &Authority) -> Result<Self> {
        Self::start_with(folder, tether, Some(authority)).await
    }

    /// Like `start`, with one plugin of others, a file `NAME-VERSION.ez`.
    pub async fn start_with_plugin(folder: &Path, tether: Tether, file: &Path) -> Result<Self> {
        let name = file.file_name().and_then(|name| name.to_str()).context("a plugin is a file")?;
        let plugin = name.split('-').next().unwrap_or(name);
        let mut broker = Self::in_folder(folder, tether, None)?;
        // RabbitMQ's own user must be able to read it.
        let own = folder.join("more-plugins");
        broker.account.own_folder(&own)?;
        fs::copy(file, own.join(name)).with_context(|| format!("copying {}", file.display()))?;
        broker.account.own(&own.join(name))?;
        fs::write(folder.join("enabled_plugins"), format!("[{plugin}].\n"))?;
        broker.plugin = Some(own);
        broker.started().await
    }

    /// Sets up a cluster of brokers in `folder`. They share a name server, so the first one must not be dropped before
    /// the others.
    pub async fn start_cluster(folder: &Path, members: usize, tether: Tether) -> Result<Vec<Self>> {
        let first = Self::start(&folder.join("0"), tether).await?;
        let join = async |member: usize| {
            let folder = folder.join(member.to_string());
            first.account.own_folder(&folder)?;
            let cookie = folder.join(".erlang.cookie");
            fs::copy(first.folder.join(".erlang.cookie"), &cookie)?;
            first.account.own(&cookie)?;
            let broker =
                Self { epmd_port: first.epmd_port, has_epmd: false, ..Self::in_folder(&folder, tether, None)? };
            broker.started().await
        };
        let mut others = futures::future::try_join_all((1..members).map(join)).await?;
        for broker in &others {
            broker.ctl(&["stop_app"]).await?;
            broker.ctl(&["join_cluster", &first.node_name()]).await?;
            broker.ctl(&["start_app"]).await?;
        }
        others.insert(0, first);
        Ok(others)
    }

    async fn start_with(folder: &Path, tether: Tether, authority: Option<&Authority>) -> Result<Self> {
        Self::in_folder(folder, tether, authority)?.started().await
    }

    async fn started(self) -> Result<Self> {
        if let Err(error) = self.restart().await {
            self.kill_all();
            return Err(error);
        }
        Ok(self)
    }

    fn in_folder(folder: &Path, tether: Tether, authority: Option<&Authority>) -> Result<Self> {
        let programs = programs::chosen_folder("rabbitmq-server")?.unwrap_or_else(|| PACKAGED.into());
        if !programs.join("rabbitmq-server").exists() {
            bail!("RabbitMQ is not installed: run integration-tests/install");
        }
        let account = Account::unprivileged(&["rabbitmq"])?;
        account.own_folder(folder)?;
        secret::remembered(&folder.join(".erlang.cookie"), &account)?;
        let plugins = folder.join("enabled_plugins");
        fs::write(&plugins, if authority.is_some() { "[rabbitmq_auth_mechanism_ssl].\n" } else { "[].\n" })?;
        account.own(&plugins)?;
        let tls_port = match authority {
            Some(authority) => Some(encrypt(folder, &account, authority)?),
            None => None,
        };
        Ok(Self {
            name: remembered_name(folder)?,
            port: secret::remembered_port(&folder.join("port"))?,
            tls_port,
            plugin: None,
            distribution_port: secret::remembered_port(&folder.join("distribution-port"))?,
            epmd_port: secret::remembered_port(&folder.join("epmd-port"))?,
            folder: folder.to_owned(),
            programs,
            account,
            tether,
            broker: Mutex::new(None),
            epmd: Mutex::new(None),
            has_epmd: true,
            retired: Mutex::new(Vec::new()),
        })
    }

    /// The URL of `vhost`; the default one is `/`.
    pub fn url(&self, vhost: &str) -> String {
        self.url_through(self.port, vhost)
    }

    /// The URL of `vhost` through another port of 127.0.0.1, which leads here.
    pub fn url_through(&self, port: u16, vhost: &str) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/{}", vhost.replace('/', "%2f"))
    }

    /// The URL of the virtual host `/` over TLS. `login` is `user:password@`, or empty.
    pub fn tls_url(&self, login: &str) -> String {
        format!("amqps://{login}127.0.0.1:{}/%2f", self.tls_port.expect("it was started with an authority"))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pids(&self) -> Vec<u32> {
        [&self.broker, &self.epmd].iter().filter_map(|process| process.lock().as_ref().map(Process::pid)).collect()
    }

    /// Creates an empty virtual host and returns its URL.
    pub async fn add_vhost(&self, name: &str) -> Result<String> {
        // The newest one stays for another scenario: its clients were killed a moment ago, and a queue that RabbitMQ
        // still makes for one of them while its virtual host is deleted can end the dead-lettering of the whole broker.
        let retired: Vec<String> = {
            let mut retired = self.retired.lock();
            let old = retired.len().saturating_sub(1);
            retired.drain(..old).collect()
        };
        let mut steps: Vec<String> =
            retired.iter().map(|old| format!("catch rabbit_vhost:delete(<<\"{old}\">>, <<\"sandbox\">>)")).collect();
        steps.push(format!("rabbit_vhost:add(<<\"{name}\">>, <<\"sandbox\">>)"));
        steps.push(format!(
            "rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, <<\"{name}\">>, <<\".*\">>, <<\".*\">>, \
             <<\".*\">>, <<\"sandbox\">>)"
        ));
        self.eval(&steps).await?;
        Ok(self.url(name))
    }

    /// Allows the removal of the virtual host with its whole content, once another one is retired too.
    pub fn retire_vhost(&self, name: String) {
        self.retired.lock().push(name);
    }

    /// How many queues a virtual host has and how many messages are in them; how many connections and channels the
    /// broker has. Cheap enough for a broker that is busy.
    pub async fn counts(&self, vhost: &str) -> Result<[u64; 4]> {
        let told = self
            .evaluated(&[
                format!("Infos = rabbit_amqqueue:info_all(<<\"{vhost}\">>, [messages])"),
                "Messages = lists:sum([Count || [{messages, Count}] <- Infos, is_integer(Count)])".to_owned(),
                "{length(Infos), Messages, length(rabbit_networking:local_connections()), \
                 length(rabbit_channel:list_local())}"
                    .to_owned(),
            ])
            .await?;
        let numbers = told.split(|symbol: char| !symbol.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        numbers.collect::<Vec<u64>>().try_into().map_err(|_| anyhow!("the broker counts {told}"))
    }

    /// Evaluates Erlang expressions inside the broker, one after the other.
    pub async fn eval(&self, steps: &[String]) -> Result<()> {
        self.evaluated(steps).await.map(drop)
    }

    /// Like `eval`, and returns the last value as Erlang writes it.
    async fn evaluated(&self, steps: &[String]) -> Result<String> {
        let steps = format!("{}.", steps.join(", "));
        let Some(caller) = self.caller() else { return self.ctl(&["eval", &steps]).await };
        let mut command = self.command(&caller);
        // Each call has a name of its own: the broker refuses two of one name at the same time.
        command.args(["-h", &shared::unique("call"), "-sname", &self.node_name(), "-e"]);
        // Only a line break ends the expression.
        let told = process::run_with(&format!("erl_call {steps}"), command, &format!("{steps}\n")).await?;
        // It ends with status 0 whatever the broker says.
        ensure!(told.starts_with("{ok, "), "erl_call {steps}: {told}");
        Ok(told)
    }

    /// Erlang's own program for a call to a node, unless a chosen RabbitMQ comes without it. It takes some 10 ms where
    /// `rabbitmqctl` starts a whole Erlang.
    fn caller(&self) -> Option<PathBuf> {
        let own = self.programs.join("erl_call");
        if own.exists() { Some(own) } else { programs::on_path("erl_call").filter(|_| self.programs == *PACKAGED) }
    }

    /// Runs `rabbitmqctl` with these arguments; takes about half a second.
    pub async fn ctl(&self, words: &[&str]) -> Result<String> {
        let mut command = self.command(&self.programs.join("rabbitmqctl"));
        command.args(["-q", "-n", &self.node_name()]).args(words);
        process::run(&format!("rabbitmqctl {}", words.join(" ")), command).await
    }

    /// A program that talks to the broker, as the broker's user.
    fn command(&self, program: &Path) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("setpriv");
        command.args(self.account.setpriv()).args(["--pdeathsig=KILL", "--"]).arg(program);
        command.env_clear().envs(self.environment()).current_dir(&self.folder);
        command
    }

    /// The version of the running broker.
    pub async fn version(&self) -> Result<String> {
        // What it prints comes before the value of the call, `ok`.
        let printed = self.ctl(&["eval", "io:format(\"~s~n\", [rabbit_misc:version()])."]).await?;
        Ok(printed.lines().next().unwrap_or_default().to_owned())
    }

    /// Puts RabbitMQ's own programs for operators into `folder`: they talk to this broker, and `rabbitmqctl` to this
    /// virtual host.
    pub fn programs(&self, folder: &Path, vhost: &str) -> Result<()> {
        fs::create_dir_all(folder)?;
        let variables: String = self.environment().iter().map(|(name, value)| format!(" '{name}={value}'")).collect();
        let (user, place, node) = (self.account.setpriv().join(" "), self.folder.display(), self.node_name());
        for (program, words) in [("rabbitmqctl", format!("--vhost {vhost}")), ("rabbitmq-diagnostics", String::new())] {
            let file = folder.join(program);
            let run = format!("setpriv {user} -- env -i{variables} {} -n {node} {words} \"$@\"", self.program(program));
            fs::write(&file, format!("#!/bin/sh\ncd '{place}' && exec {run}\n"))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Kills the broker with SIGKILL. Its name server stays, because it holds no state.
    pub fn kill(&self) {
        if let Some(process) = self.broker.lock().take() {
            process.kill();
        }
    }

    /// Sends SIGKILL to the broker and to its name server.
    pub fn kill_all(&self) {
        self.kill();
        if let Some(process) = self.epmd.lock().take() {
            process.kill();
        }
    }

    /// Stops the broker with SIGSTOP: connections stay open and silent.
    pub fn pause(&self) -> Result<()> {
        self.broker.lock().as_ref().context("rabbitmq does not run")?.signal(Signal::Stop)
    }

    pub fn resume(&self) -> Result<()> {
        self.broker.lock().as_ref().context("rabbitmq does not run")?.signal(Signal::Cont)
    }

    pub fn is_running(&self) -> bool {
        self.broker.lock().as_ref().is_some_and(Process::is_running)
    }

    /// Stops in order.
    pub async fn stop(&self) -> Result<()> {
        let Some(process) = self.broker.lock().take() else { return Ok(()) };
        process.signal(Signal::Term)?;
        process.wait(START_WITHIN).await?;
        Ok(())
    }

    /// Starts it unless it runs, and waits until it accepts connections.
    pub async fn restart(&self) -> Result<()> {
        self.launch_ended()?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            match self.look().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("rabbitmq does not answer on port {}", self.port));
                }
                Err(_) => {
                    self.broker.lock().as_ref().context("rabbitmq was killed while it started")?.check()?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Starts the broker and its name server, where they do not run.
    fn launch_ended(&self) -> Result<()> {
        let mut epmd = self.epmd.lock();
        if self.has_epmd && epmd.as_ref().is_none_or(|process| !process.is_running()) {
            *epmd = Some(self.launch("epmd", self.name_server(), Vec::new())?);
        }
        if !self.is_running() {
            let program = self.programs.join("rabbitmq-server");
            *self.broker.lock() = Some(self.launch("rabbitmq", program, self.environment())?);
        }
        Ok(())
    }

    /// Checks with a timeout: a broker that has just started may accept a connection and never greet it.
    async fn look(&self) -> Result<()> {
        let url = self.url("/");
        let connecting = Connection::connect(&url, ConnectionProperties::default());
        let connection =
            tokio::time::timeout(GREETS_WITHIN, connecting).await.context("it sends no AMQP greeting")??;
        connection.close(200, "seen".into()).await.ok();
        Ok(())
    }

    fn launch(&self, name: &str, program: PathBuf, mut env: Vec<(String, String)>) -> Result<Process> {
        // An epmd of this process: the one that Erlang would start by itself is a daemon that no test stops.
        env.push(("ERL_EPMD_PORT".into(), self.epmd_port.to_string()));
        env.push(("ERL_EPMD_ADDRESS".into(), "127.0.0.1".into()));
        Launch {
            name: name.into(),
            program,
            args: Vec::new(),
            env,
            account: self.account.clone(),
            folder: self.folder.clone(),
            log: self.folder.join(format!("{name}.out")),
            tether: self.tether,
            on_death: Signal::Kill,
        }
        .start()
    }

    fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// A chosen RabbitMQ comes with its Erlang; Debian's takes the name server from the PATH.
    fn name_server(&self) -> PathBuf {
        let own = self.programs.join("epmd");
        if own.exists() { own } else { "epmd".into() }
    }

    /// The name of the broker in its cluster.
    pub fn node_name(&self) -> String {
        self.name.clone()
    }

    /// The folders of plugins: this one, and the server's own beside its programs, which may be links.
    fn with_its_own_plugins(&self, more: &Path) -> String {
        let program = self.programs.join("rabbitmq-server").canonicalize().unwrap_or_default();
        let server = program.parent().and_then(Path::parent).unwrap_or(&program);
        format!("{}:{}", more.display(), server.join("plugins").display())
    }

    /// The package's scripts take every folder, port and list from the environment.
    fn environment(&self) -> Vec<(String, String)> {
        let below = |name: &str| self.folder.join(name).display().to_string();
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin:/usr/sbin:/sbin".into());
        let plugins = self.plugin.iter().map(|more| ("RABBITMQ_PLUGINS_DIR", self.with_its_own_plugins(more)));
        [
            ("PATH", path),
            ("HOME", self.folder.display().to_string()),
            ("ERL_EPMD_PORT", self.epmd_port.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("RABBITMQ_NODENAME", self.node_name()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
            ("RABBITMQ_NODE_PORT", self.port.to_string()),
            ("RABBITMQ_DIST_PORT", self.distribution_port.to_string()),
            ("RABBITMQ_BASE", self.folder.display().to_string()),
            ("RABBITMQ_MNESIA_BASE", below("data")),
            ("RABBITMQ_LOG_BASE", below("log")),
            ("RABBITMQ_PID_FILE", below("pid")),
            ("RABBITMQ_CONF_ENV_FILE", below("rabbitmq-env.conf")),
            ("RABBITMQ_CONFIG_FILE", below("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", below("advanced.config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", below("enabled_plugins")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", below("generated")),
            ("RABBITMQ_SCHEMA_DIR", below("schema")),
            ("RABBITMQ_PLUGINS_EXPAND_DIR", below("plugins")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.into()),
            // The script then turns into the Erlang machine instead of supervising it, so the known process id is the
            // broker's.
            ("RABBITMQ_ALLOW_INPUT", "1".into()),
        ]
        .into_iter()
        .chain(plugins)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// The name of the broker in `folder`, after its first port. Its data lie under the name, so it stays when that port is
/// taken by another program.
fn remembered_name(folder: &Path) -> Result<String> {
    let (file, port) = (folder.join("name"), folder.join("port"));
    if let Some(known) = secret::kept(&file) {
        return Ok(known);
    }
    // A broker of earlier versions has a port and no file with its name.
    let first = match secret::kept(&port) {
        Some(known) => known,
        None => secret::remembered_port(&port)?.to_string(),
    };
    let name = format!("duetime-{}@localhost", first.trim());
    fs::write(&file, &name).with_context(|| format!("writing {}", file.display()))?;
    Ok(name)
}

/// Writes the settings and files for TLS on a port of its own; returns the port.
fn encrypt(folder: &Path, account: &Account, authority: &Authority) -> Result<u16> {
    let port = secret::remembered_port(&folder.join("tls-port"))?;
    let server = authority.server()?;
    let mut settings = format!("listeners.ssl.1 = 127.0.0.1:{port}\n");
    for (key, file) in [("cacertfile", authority.file()), ("certfile", &server.cert), ("keyfile", &server.key)] {
        let own = folder.join(key);
        fs::copy(file, &own)?;
        account.own(&own)?;
        settings.push_str(&format!("ssl_options.{key} = {}\n", own.display()));
    }
    settings.push_str(
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\nssl_cert_login_from = common_name\n\
         auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = AMQPLAIN\nauth_mechanisms.3 = EXTERNAL\n",
    );
    let file = folder.join("rabbitmq.conf");
    fs::write(&file, settings)?;
    account.own(&file)?;
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_whose_first_start_wrote_nothing_gets_a_name_with_a_port() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["name", "port"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let name = remembered_name(folder.path()).unwrap();
        let port = secret::remembered_port(&folder.path().join("port")).unwrap();
        assert_eq!(name, format!("duetime-{port}@localhost"));
        assert_eq!(remembered_name(folder.path()).unwrap(), name);
    }
}
