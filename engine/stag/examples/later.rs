//! A custom RPC program whose answers come later, from another thread: the reactor goes on with other Calls, and is woken
//! up when the answer is ready.
//!
//! ```text
//! later serve NAME           serves at shm://NAME
//! later call NAME 5 200      calls it 200 times, for jobs of 5 ms each; says how long the median took
//! ```

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a64;

/// Jobs that may take long, in milliseconds.
const JOB_MAX: u32 = 60_000;

/// A job, and where its answer goes.
type Job = (Duration, Deferred);

/// The program: version 1, procedure 1, `unsigned int work(unsigned int milliseconds)`.
struct Later {
    jobs: mpsc::Sender<Job>,
}

static WORK: Procedure = Procedure::plain("WORK");

impl Service for Later {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&WORK)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let Some(milliseconds) = call.arguments().u32().ok().filter(|job| *job <= JOB_MAX) else {
            reply.garbage_arguments();
            return Outcome::Done;
        };
        // It fails when there are too many: then the client is told at once.
        let Ok(deferred) = reply.defer(call) else {
            reply.system_error();
            return Outcome::Done;
        };
        let token = deferred.token();
        // A worker that is gone drops what it is sent: a Deferred that is dropped answers SYSTEM_ERR.
        let _ = self.jobs.send((Duration::from_millis(milliseconds.into()), deferred));
        Outcome::Later(token)
    }
}

/// Works on one job after the other.
fn work(jobs: &mpsc::Receiver<Job>) {
    for (job, deferred) in jobs {
        thread::sleep(job);
        let took = job.as_millis() as u32;
        // Runs on the reactor: only the Reply is filled in there.
        deferred.finish(move |reply| reply.success(|writer| writer.u32(took)));
    }
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
    shm.register(&memory.arena)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || work(&receiver));
    let mut engine = Engine::new(shm, (Later { jobs: sender },), memory.pools, config, 1)?;
    engine.listen(name)?;
    println!("ready: {name}");

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    let stopped = Reactor::new(ReactorConfig::default(), Clock::start())?.run(&mut engine, &stop)?;
    println!("{:?}, {}", stopped.drained, memory.ledger);
    Ok(())
}

fn call(name: &str, job: u32, count: usize) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    let mut shm = Shm::open(ShmConfig::default())?;
    shm.register(&memory.arena)?;
    let seed = RandomState::new().hash_one(0) as u32;
    let mut engine = Engine::new(shm, (), memory.pools, config, seed)?;
    let clock = Clock::start();

    let connection = engine.connect(name)?;
    loop {
        engine.poll(clock.now());
        match engine.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => return Err(format!("{name}: {event:?}").into()),
            None => thread::yield_now(),
        }
    }
    let request = Request {
        program: PROGRAM,
        version: 1,
        procedure: 1,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(120),
        results_len_max: 4,
        retransmit: true,
    };
    let mut times = Vec::new();
    while times.len() < count {
        let begin = clock.now();
        engine.call(connection, &request, &mut Chunks::default(), |writer| writer.u32(job))?;
        let done = loop {
            engine.poll(clock.now());
            match engine.completed() {
                Some(done) => break done,
                // Leaves the core to the server, if that shares it.
                None => thread::yield_now(),
            }
        };
        if done.result?.bytes() != job.to_be_bytes() {
            return Err("the answer to another job".into());
        }
        times.push(clock.now() - begin);
    }
    times.sort_unstable();
    let median = times.get(count / 2).ok_or("no Calls")?;
    println!("{count} jobs of {job} ms, the median answered after {:.2} ms", median.as_secs_f64() * 1e3);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name] => serve(name),
        ["call", name, job, count] => call(name, job.parse()?, count.parse()?),
        _ => Err("serve NAME, or call NAME MILLISECONDS COUNT".into()),
    }
}
