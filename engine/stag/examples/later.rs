//! A custom RPC program whose answers come later, from another thread: the reactor goes on with other Calls, and is woken
//! up when the answer is ready.
//!
//! ```text
//! later serve NAME           serves at shm://NAME
//! later call NAME 5 200      calls it 200 times, for jobs of 5 ms each
//! later wake 5 200           wakes a thread that sleeps, 200 times after 5 ms each: what no program can do without
//! ```
//!
//! `call` prints the median time from the end of a job to its answer, and beside it the time of a Call that is answered at
//! once. A job begins when the handler hands it to the worker and ends when the worker has done it: a sleep of 5 ms takes
//! longer than that, and so does waking the worker.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a64;

/// Jobs that may take long, in milliseconds.
const JOB_MAX: u32 = 60_000;

/// A job: how long it is to take, when it was handed to the worker, and where its answer goes.
type Job = (Duration, Duration, Deferred);

/// The program: version 1, procedure 1, `unsigned int work(unsigned int milliseconds)`: how many nanoseconds it took.
struct Later {
    clock: Clock,
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
        // It fails when there are too many: then the client gets an error at once.
        let Ok(deferred) = reply.defer(call) else {
            reply.system_error();
            return Outcome::Done;
        };
        let token = deferred.token();
        // A worker that is gone drops what it is sent: a Deferred that is dropped answers SYSTEM_ERR.
        let _ = self.jobs.send((Duration::from_millis(milliseconds.into()), self.clock.now(), deferred));
        Outcome::Later(token)
    }
}

/// Works on one job after the other.
fn work(clock: &Clock, jobs: &mpsc::Receiver<Job>) {
    for (job, begin, deferred) in jobs {
        if !job.is_zero() {
            thread::sleep(job);
        }
        let took = (clock.now() - begin).as_nanos() as u64;
        // Runs on the reactor: only the Reply is filled in there.
        deferred.finish(move |reply| reply.success(|writer| writer.u64(took)));
    }
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
    shm.register(&memory.arena)?;
    let (sender, receiver) = mpsc::channel();
    let clock = Clock::start();
    thread::spawn(move || work(&clock, &receiver));
    let mut engine = Engine::new(shm, (Later { clock, jobs: sender },), memory.pools, config, 1)?;
    engine.listen(name)?;
    println!("ready: {name}");

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    let stopped = Reactor::new(ReactorConfig::default(), clock)?.run(&mut engine, &stop)?;
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
    let request = |procedure| Request {
        program: PROGRAM,
        version: 1,
        procedure,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(120),
        results_len_max: 8,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    };
    // One Call: how long it took, and its results.
    let mut call = |procedure| -> Result<(Duration, Vec<u8>), Box<dyn Error>> {
        let begin = clock.now();
        engine.call(connection, &request(procedure), &mut Chunks::default(), |writer| match procedure {
            0 => Ok(()),
            _ => writer.u32(job),
        })?;
        loop {
            engine.poll(clock.now());
            match engine.completed() {
                Some(done) => return Ok((clock.now() - begin, done.result?.bytes().to_vec())),
                // Leaves the core to the server, if that shares it.
                None => thread::yield_now(),
            }
        }
    };
    let (mut jobs, mut late, mut at_once) = (Vec::new(), Vec::new(), Vec::new());
    while late.len() < count {
        let (time, results) = call(1)?;
        let took = Duration::from_nanos(u64::from_be_bytes(results[..].try_into()?));
        if took < Duration::from_millis(job.into()) || took > time {
            return Err("the answer to another job".into());
        }
        jobs.push(took);
        late.push(time - took);
        at_once.push(call(0)?.0);
    }
    println!(
        "{count} jobs of {:.3} ms, answered {:.1} us after that; a Call that is answered at once takes {:.1} us (medians)",
        micros(&mut jobs)? / 1e3,
        micros(&mut late)?,
        micros(&mut at_once)?,
    );
    Ok(())
}

/// The median, in microseconds.
fn micros(times: &mut [Duration]) -> Result<f64, &'static str> {
    times.sort_unstable();
    Ok(times.get(times.len() / 2).ok_or("no Calls")?.as_secs_f64() * 1e6)
}

/// Wakes a thread that waits for it, after that many milliseconds each time, and says how long the median took.
fn wake(pause: u64, count: usize) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    let (sender, receiver) = mpsc::channel::<Duration>();
    let sleeper = thread::spawn(move || receiver.iter().map(|sent| clock.now() - sent).collect::<Vec<_>>());
    for _ in 0..count {
        thread::sleep(Duration::from_millis(pause));
        sender.send(clock.now())?;
    }
    drop(sender);
    let mut times = sleeper.join().map_err(|_| "the sleeper is gone")?;
    println!("a thread that sleeps is awake {:.1} us after it is told (median)", micros(&mut times)?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name] => serve(name),
        ["call", name, job, count] => call(name, job.parse()?, count.parse()?),
        ["wake", pause, count] => wake(pause.parse()?, count.parse()?),
        _ => Err("serve NAME, call NAME MILLISECONDS COUNT, or wake MILLISECONDS COUNT".into()),
    }
}
