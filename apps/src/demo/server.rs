//! A server that a command starts for itself: a real `stagd` process.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stag_server::failure::CommandFailure;
use stag_server::values::Poll;

/// How to start it.
pub(crate) struct ServerConfig {
    /// Where it listens.
    pub(crate) url: String,
    /// What it exports, as `stagd --export` takes it.
    pub(crate) export: String,
    /// Its memory budget in bytes.
    pub(crate) memory: u64,
    /// The cores that it is pinned to. None: it takes one by itself.
    pub(crate) cores: Vec<usize>,
    /// What it does when it is idle.
    pub(crate) poll: Poll,
    /// Where it keeps what outlives it, if anywhere.
    pub(crate) state_dir: Option<PathBuf>,
}

/// A server process. Dropping it closes its standard input, on which it stops.
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    /// The lines that it prints.
    lines: Receiver<String>,
    /// The object that it printed at its start.
    pub(crate) started: Value,
    /// The one that says where it listens.
    pub(crate) ready: Value,
}

/// Longer than a server takes to start on much memory, or to stop with its deadline.
const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(config: &ServerConfig) -> Result<Server, CommandFailure> {
        let mut command = command()?;
        command.args(["--json", "--until-eof", "--export", &config.export]);
        command.args(["--listen", &config.url, "--memory", &config.memory.to_string()]);
        command.args(["--poll", &config.poll.to_string()]);
        command.args(config.state_dir.iter().flat_map(|folder| ["--state-dir".as_ref(), folder.as_os_str()]));
        if !config.cores.is_empty() {
            let cores: Vec<String> = config.cores.iter().map(usize::to_string).collect();
            command.args(["--cores", &cores.join(",")]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| {
            CommandFailure::run(format_args!("the server, {program}, does not start: {error}"))
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for as pipes")
        };
        let (sender, lines) = mpsc::channel();
        // Ends with the server's output.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut server =
            Server { child, input: Some(input), lines, started: Value::Null, ready: Value::Null };
        server.started = server.wait_for("started")?;
        server.ready = server.wait_for("ready")?;
        Ok(server)
    }

    /// Its process id.
    #[must_use]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in order, and returns the object that it printed at its end. Fails if it leaked a buffer, or
    /// ended with another status than 0.
    pub(crate) fn stop(mut self) -> Result<Value, CommandFailure> {
        // Its sign to stop.
        self.input = None;
        let stopped = self.wait_for("stopped")?;
        let status =
            self.child.wait().map_err(|error| CommandFailure::run(format_args!("the server: {error}")))?;
        if !status.success() {
            let ledger = stopped["ledger"].as_str().unwrap_or("no ledger");
            return Err(CommandFailure::run(format_args!("the server ended with {status}; {ledger}")));
        }
        Ok(stopped)
    }

    /// Reads on to the object of that event.
    fn wait_for(&mut self, event: &str) -> Result<Value, CommandFailure> {
        loop {
            let line = match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    return Err(CommandFailure::run(format_args!(
                        "the server ended before it was {event}: {status}; it said why above"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(CommandFailure::run(format_args!(
                        "the server is not {event} within {seconds} s"
                    )));
                }
            };
            let object: Value = serde_json::from_str(&line)
                .map_err(|error| CommandFailure::run(format_args!("the server printed {line:?}: {error}")))?;
            if object["event"] == event {
                return Ok(object);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.input = None;
        // It is told to stop now, and does so within its deadline, or else is killed: it never outlives us.
        if self.wait_for("stopped").is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The `stagd` beside this program; or this program, which holds the same code, where there is none or an
/// older one (`cargo run --bin stag` builds only `stag`).
fn command() -> Result<Command, CommandFailure> {
    let own = env::current_exe()
        .map_err(|error| CommandFailure::run(format_args!("this program's path: {error}")))?;
    let beside: PathBuf = own.with_file_name("stagd");
    let age = |path: &PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if age(&beside).is_some_and(|beside| age(&own).is_none_or(|own| beside >= own)) {
        return Ok(Command::new(beside));
    }
    let mut command = Command::new(own);
    command.arg("stagd");
    Ok(command)
}
