//! Counts the instructions that a running program executes for each Send that it posts to an RDMA device: it takes the busiest
//! thread of a process and steps it, one instruction after the other. What `ci/instructions.sh` runs.
//!
//! ```text
//! instructions PID SENDS
//! ```
//!
//! - A pass is what is executed from one look into the completion queue (`poll_cq` of the device's library) to the next. A pass
//!   that found nothing and posted nothing is waiting, and does not count: how often a program looks before something is
//!   there is the other end's business.
//! - What the kernel does is not seen: a system call is one instruction, and is counted besides.
//! - A stepped thread is thousands of times slower than time. So that it does not do with every Call what it does at intervals,
//!   `clock_gettime` tells it what time it would be at [`INSTRUCTIONS_PER_MICROSECOND`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use libc::{c_long, c_void, pid_t, user_regs_struct};

/// Of the time that the stepped thread sees: about a core of 2.5 GHz that executes one in each cycle.
const INSTRUCTIONS_PER_MICROSECOND: u64 = 2500;

/// When so many were executed and not enough was sent, that is all there is.
const INSTRUCTIONS_MAX: u64 = 500_000;

/// A second argument of `poll_cq` is a count, of `post_send` and `post_recv` a pointer.
const COUNT_MAX: u64 = 1 << 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [process, sends] = &arguments[..] else { bail!("instructions PID SENDS") };
    let process: pid_t = process.parse()?;
    let thread = busiest(process)?;
    let stepper = Stepper::attach(process, thread)?;
    let counted = Counted::take(stepper, sends.parse()?)?;
    if counted.sends == 0 {
        bail!("no Send in {INSTRUCTIONS_MAX} instructions, {} idle passes", counted.idle_passes);
    }
    counted.print();
    Ok(())
}

/// The thread that used the most time of its own.
fn busiest(process: pid_t) -> Result<pid_t> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        let stat = fs::read_to_string(task.path().join("stat"))?;
        // Behind the name, which may hold anything: state, then from field 4 on; utime is field 14.
        let fields = stat.rsplit_once(')').context("stat")?.1;
        let time: u64 = fields.split_whitespace().nth(11).context("utime")?.parse()?;
        threads.push((time, task.file_name().to_string_lossy().parse()?));
    }
    threads.into_iter().max().map(|(_, thread)| thread).context("a process has threads")
}

/// A piece of a program's code.
struct Mapping {
    range: Range<u64>,
    name: String,
    code: Vec<u8>,
}

/// A thread that is stepped.
struct Stepper {
    process: pid_t,
    thread: pid_t,
    mappings: Vec<Mapping>,
    /// Which mapping the last lookup was in.
    last: usize,
}

/// The result of a system call that returns a number or -1.
fn check(returned: c_long) -> Result<c_long> {
    if returned == -1 { Err(io::Error::last_os_error().into()) } else { Ok(returned) }
}

impl Stepper {
    fn attach(process: pid_t, thread: pid_t) -> Result<Stepper> {
        // SAFETY: touches no memory of ours.
        check(unsafe { libc::ptrace(libc::PTRACE_ATTACH, thread, 0, 0) }).context("attach")?;
        let mut stepper = Stepper { process, thread, mappings: Vec::new(), last: 0 };
        stepper.wait()?;
        for line in fs::read_to_string(format!("/proc/{process}/maps"))?.lines() {
            let mut words = line.split_whitespace();
            let (Some(range), Some(access), Some(name)) = (words.next(), words.next(), words.nth(3)) else {
                continue;
            };
            if !access.contains('x') || name == "[vsyscall]" {
                continue;
            }
            let (start, end) = range.split_once('-').context("maps")?;
            let range = u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?;
            let code = stepper.read(range.start, (range.end - range.start) as usize)?;
            stepper.mappings.push(Mapping { range, name: name.to_owned(), code });
        }
        Ok(stepper)
    }

    fn wait(&self) -> Result<()> {
        let mut status = 0;
        // SAFETY: it writes the one number.
        check(unsafe { libc::waitpid(self.thread, &mut status, libc::__WALL) }.into())?;
        if !libc::WIFSTOPPED(status) {
            bail!("the program ended while it was counted");
        }
        Ok(())
    }

    /// Executes one instruction, and returns where the next is.
    fn step(&self) -> Result<u64> {
        // SAFETY: touches no memory of ours.
        check(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0) })?;
        self.wait()?;
        let at = std::mem::offset_of!(user_regs_struct, rip);
        // SAFETY: touches no memory of ours.
        Ok(unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.thread, at, 0) } as u64)
    }

    fn registers(&self) -> Result<user_regs_struct> {
        // SAFETY: numbers, for which all zeros is a value.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: it writes the one structure.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.thread, 0, &mut registers) })?;
        Ok(registers)
    }

    fn read(&self, address: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let theirs = libc::iovec { iov_base: address as *mut c_void, iov_len: len };
        // SAFETY: writes to `bytes` only, within its length.
        check(unsafe { libc::process_vm_readv(self.process, &ours, 1, &theirs, 1, 0) } as c_long)?;
        Ok(bytes)
    }

    fn read_word(&self, address: u64) -> Result<u64> {
        Ok(u64::from_le_bytes(self.read(address, 8)?.try_into().expect("eight")))
    }

    fn write_word(&self, address: u64, word: u64) -> Result<()> {
        // SAFETY: changes the stepped process only.
        check(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.thread, address, word) }).map(drop)
    }

    /// The mapping of an instruction, if it is known.
    fn mapping(&mut self, at: u64) -> Option<usize> {
        if !self.mappings.get(self.last)?.range.contains(&at) {
            self.last = self.mappings.iter().position(|mapping| mapping.range.contains(&at))?;
        }
        Some(self.last)
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        // SAFETY: touches no memory of ours. If it fails the program is gone.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.thread, 0, 0) };
    }
}

/// A call from one mapping into the device's library or the kernel's clock.
struct Entered {
    function: u64,
    /// Where it returns to, and the stack pointer then.
    returns: (u64, u64),
    /// The second argument, and for the clock the first.
    argument: u64,
    clock: Option<u64>,
    system_calls: u64,
}

/// From one look into the completion queue to the next.
#[derive(Default)]
struct Pass {
    instructions: BTreeMap<usize, u64>,
    system_calls: u64,
    found: bool,
    posted: bool,
    sends: u64,
}

/// What was counted.
#[derive(Default)]
struct Counted {
    /// Of passes that did something, by where the code is.
    instructions: BTreeMap<String, u64>,
    system_calls: u64,
    sends: u64,
    passes: u64,
    idle_passes: u64,
    idle_instructions: u64,
}

impl Counted {
    fn take(mut stepper: Stepper, sends: u64) -> Result<Counted> {
        let is_library = |name: &str| name.contains("/libsiw-") || name.contains("/librxe-");
        let mut counted = Counted::default();
        let mut senders: Vec<u64> = Vec::new();
        let mut pass: Option<Pass> = None;
        let mut entered: Option<Entered> = None;
        let mut executed = 0;
        let mut epoch = None;
        let mut at = stepper.step()?;
        let mut here = stepper.mapping(at);
        while counted.sends < sends && executed < INSTRUCTIONS_MAX {
            let (mut is_call, mut repeats) = (false, false);
            if let Some(here) = here {
                let mapping = &stepper.mappings[here];
                let code = &mapping.code[(at - mapping.range.start) as usize..];
                is_call = code.starts_with(&[0x0f, 0x05]);
                repeats = matches!(code.first(), Some(0xf2 | 0xf3));
            }
            let next = stepper.step()?;
            // A string instruction stops after each of its rounds.
            if !(repeats && next == at) {
                executed += 1;
                if let Some(pass) = &mut pass {
                    *pass.instructions.entry(here.unwrap_or(usize::MAX)).or_default() += 1;
                    pass.system_calls += u64::from(is_call);
                }
                if let Some(entered) = &mut entered {
                    entered.system_calls += u64::from(is_call);
                }
            }
            let before = here;
            at = next;
            here = stepper.mapping(at);

            if let Some(call) = entered.take_if(|call| call.returns.0 == at) {
                let registers = stepper.registers()?;
                if registers.rsp != call.returns.1 {
                    entered = Some(call);
                } else if let Some(clock) = call.clock {
                    // CLOCK_MONOTONIC; `argument` is where the time goes.
                    if clock == 1 {
                        let told = stepper.read_word(call.argument)? * 1_000_000_000
                            + stepper.read_word(call.argument + 8)?;
                        let begin = *epoch.get_or_insert(told);
                        let time = begin + executed * 1000 / INSTRUCTIONS_PER_MICROSECOND;
                        stepper.write_word(call.argument, time / 1_000_000_000)?;
                        stepper.write_word(call.argument + 8, time % 1_000_000_000)?;
                    }
                } else if let Some(pass) = &mut pass {
                    if call.argument < COUNT_MAX {
                        pass.found |= registers.rax as i32 > 0;
                    } else {
                        // Only Sends need the kernel's help.
                        if call.system_calls > 0 && !senders.contains(&call.function) {
                            senders.push(call.function);
                        }
                        pass.posted = true;
                        pass.sends += u64::from(senders.contains(&call.function));
                    }
                }
            } else if entered.is_none() && here != before {
                let name = here.map_or("", |here| &stepper.mappings[here].name);
                if !is_library(name) && name != "[vdso]" {
                    continue;
                }
                let registers = stepper.registers()?;
                let call = Entered {
                    function: at,
                    returns: (stepper.read_word(registers.rsp)?, registers.rsp + 8),
                    argument: registers.rsi,
                    clock: (name == "[vdso]").then_some(registers.rdi),
                    system_calls: 0,
                };
                // The first may be the end of a call that began before we came: wait for a look.
                if call.clock.is_none() && call.argument < COUNT_MAX {
                    if let Some(pass) = pass.take() {
                        counted.add(pass, &stepper.mappings);
                    }
                    pass = Some(Pass::default());
                }
                if pass.is_some() || call.clock.is_some() {
                    entered = Some(call);
                }
            }
        }
        Ok(counted)
    }

    fn add(&mut self, pass: Pass, mappings: &[Mapping]) {
        if !pass.found && !pass.posted {
            self.idle_passes += 1;
            self.idle_instructions += pass.instructions.values().sum::<u64>();
            return;
        }
        self.passes += 1;
        self.sends += pass.sends;
        self.system_calls += pass.system_calls;
        for (at, count) in pass.instructions {
            let name = mappings.get(at).map_or("elsewhere", |mapping| &mapping.name);
            let name = name.rsplit('/').next().unwrap_or(name);
            *self.instructions.entry(name.to_owned()).or_default() += count;
        }
    }

    fn print(&self) {
        let per = |count: u64| count as f64 / self.sends as f64;
        let total: u64 = self.instructions.values().sum();
        println!(
            "{:.0} instructions and {:.2} system calls for each of {} Sends, in {:.2} passes",
            per(total),
            per(self.system_calls),
            self.sends,
            per(self.passes)
        );
        for (name, &count) in &self.instructions {
            println!("    {:8.0} in {name}", per(count));
        }
        let idle = self.idle_instructions.checked_div(self.idle_passes).unwrap_or(0);
        println!("    a pass that finds nothing takes {idle}; there were {} of them", self.idle_passes);
    }
}
