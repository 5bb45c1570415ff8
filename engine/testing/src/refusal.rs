//! Lets system calls fail, as the filter of a container does.
#![allow(unsafe_code)]

/// Lets these system calls (`libc::SYS_…`) of the calling thread, and of threads that it starts, fail with an error (`libc::E…`)
/// from now on.
///
/// # Panics
///
/// If the kernel takes no filter.
pub fn refuse_system_calls(numbers: &[libc::c_long], error: i32) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the system call is the first word.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for number in numbers {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number as u32, 0, 1));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | error as u32, 0, 0));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which is there, and changes nothing of this process's memory.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
