//! Copies into memory that a peer reads, and out of memory that a peer may write meanwhile; prefetches.

/// Copies up to this length are done in line: a call to memcpy costs more than they do.
const COPY_SMALL_MAX: usize = 256;
/// From this length on the processor's own string copy is as fast as any.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const COPY_STRING_MIN: usize = 2048;

/// Rounds up to a multiple of a power of two, without the branch of `next_multiple_of`.
#[inline(always)]
pub(super) const fn round_up(value: u64, to: u64) -> u64 {
    (value + (to - 1)) & !(to - 1)
}

/// Copies into the ring, and clears the padding: no stale byte of a former lap travels on.
///
/// # Safety
///
/// `source` is readable for `len` bytes, `target` is 8-aligned and writable for `len` rounded up to 8.
#[inline(always)]
pub(super) unsafe fn copy_in(source: *const u8, target: *mut u8, len: usize) {
    if len > COPY_SMALL_MAX {
        // SAFETY: by contract; the ring and the buffers of arenas are different mappings.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
        return;
    }
    let whole = len & !7;
    let mut at = 0;
    while at + 32 <= whole {
        // SAFETY: `at + 32 <= len`; the target is 8-aligned. Volatile, so that this loop stays a loop, and of
        // four words, so that it is two wide moves.
        unsafe {
            target
                .add(at)
                .cast::<[u64; 4]>()
                .write_volatile(source.add(at).cast::<[u64; 4]>().read_unaligned());
        }
        at += 32;
    }
    while at < whole {
        // SAFETY: `at + 8 <= len`; the target is 8-aligned. Volatile, so that this loop stays a loop.
        unsafe { target.add(at).cast::<u64>().write_volatile(source.add(at).cast::<u64>().read_unaligned()) };
        at += 8;
    }
    let rest = len - whole;
    if rest > 0 {
        // Put together in a register: a word that is stored in parts and loaded whole waits for all stores before it.
        let mut last = 0;
        // XDR has four bytes here or none. Not a loop over bytes, which would become a call to memcpy.
        if rest & 4 != 0 {
            // SAFETY: `whole + 4 <= len`.
            last = u64::from(u32::from_le(unsafe { source.add(whole).cast::<u32>().read_unaligned() }));
        }
        if rest & 2 != 0 {
            let at = rest & 4;
            // SAFETY: `whole + at + 2 <= len`.
            let half = u16::from_le(unsafe { source.add(whole + at).cast::<u16>().read_unaligned() });
            last |= u64::from(half) << (8 * at);
        }
        if rest & 1 != 0 {
            // SAFETY: `len - 1 < len`.
            last |= u64::from(unsafe { source.add(len - 1).read() }) << (8 * (rest - 1));
        }
        // SAFETY: `whole + 8` is `len` rounded up to 8.
        unsafe { target.add(whole).cast::<u64>().write_volatile(last.to_le()) };
    }
}

/// Copies out of the ring. A peer that breaks the rules may write there meanwhile: then the bytes are wrong, and nothing
/// else is. So the source is not read again after the copy, and by nothing that the compiler believes to stand still: volatile
/// accesses, or instructions that it does not look into.
///
/// # Safety
///
/// `source` is 8-aligned and readable for `len` rounded up to 8; `target` is writable for `room >= len`.
#[inline(always)]
pub(super) unsafe fn copy_out(source: *const u8, target: *mut u8, len: usize, room: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let (source, target, len, room) = if len > COPY_SMALL_MAX {
        // SAFETY: by contract; what is done is at most `len`, and a multiple of 8 if anything is left.
        unsafe {
            let done = copy_blocks(source, target, len);
            (source.add(done), target.add(done), len - done, room - done)
        }
    } else {
        (source, target, len, room)
    };
    // Whole words when the buffer has room for the padding, as it nearly always has.
    let padded = round_up(len as u64, 8) as usize;
    let words = if room >= padded { padded } else { len & !7 };
    let mut at = 0;
    // The most frequent lengths, without a loop: both ends, which may overlap. Of what is read twice the last is kept.
    if words > 32 && words <= 64 {
        for at in [0, words - 32] {
            // SAFETY: `at + 32 <= words`, which is within both; the source is 8-aligned, as `words` is a multiple of 8. Volatile:
            // not read again, whatever the peer does.
            unsafe {
                let block = source.add(at).cast::<[u64; 4]>().read_volatile();
                target.add(at).cast::<[u64; 4]>().write_unaligned(block);
            }
        }
        at = words;
    } else if (16..=32).contains(&words) {
        for at in [0, words - 16] {
            // SAFETY: as above, with `at + 16 <= words`.
            unsafe {
                let block = source.add(at).cast::<[u64; 2]>().read_volatile();
                target.add(at).cast::<[u64; 2]>().write_unaligned(block);
            }
        }
        at = words;
    // SAFETY: both are as long, as above.
    } else if unsafe { copy_ends(source, target, words) } {
        at = words;
    } else {
        while at + 32 <= words {
            // SAFETY: `at + 32 <= words`, which is within both; the source is 8-aligned. Volatile: of what is read twice the last is
            // kept, whatever the peer does.
            unsafe {
                target
                    .add(at)
                    .cast::<[u64; 4]>()
                    .write_unaligned(source.add(at).cast::<[u64; 4]>().read_volatile());
            }
            at += 32;
        }
        if at < words && words >= 32 {
            // The rest together with the end of what was copied.
            // SAFETY: as above, with `words - 32`, which is a multiple of 8.
            unsafe {
                target
                    .add(words - 32)
                    .cast::<[u64; 4]>()
                    .write_unaligned(source.add(words - 32).cast::<[u64; 4]>().read_volatile());
            }
            at = words;
        }
        while at < words {
            // SAFETY: `at + 8 <= words`, which is within both. Volatile: read once, whatever the peer does.
            unsafe {
                target.add(at).cast::<u64>().write_unaligned(source.add(at).cast::<u64>().read_volatile())
            };
            at += 8;
        }
    }
    while at < len {
        // SAFETY: `at < len`.
        unsafe { target.add(at).write(source.add(at).read_volatile()) };
        at += 1;
    }
}

/// Copies `len` octets by instructions and without a loop, if they are as many as messages with a chunk have: both ends, which may
/// overlap. Of what is read twice the last is kept. `false`: nothing was copied.
///
/// # Safety
///
/// `source` is readable and `target` writable for `len`; they do not overlap.
#[inline(always)]
unsafe fn copy_ends(source: *const u8, target: *mut u8, len: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if (65..=COPY_SMALL_MAX).contains(&len) {
        // SAFETY: each block of 64 lies within `len` octets, which are more than 64, and where a block begins at 64 more than 128.
        unsafe {
            copy_line(source, target);
            if len > 128 {
                copy_line(source.add(64), target.add(64));
                copy_line(source.add(len - 128), target.add(len - 128));
            }
            copy_line(source.add(len - 64), target.add(len - 64));
        }
        return true;
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (source, target, len);
    false
}

/// Copies 64 octets, by instructions: each is read once, whatever the peer does.
///
/// # Safety
///
/// `source` is readable and `target` writable for 64; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_line(source: *const u8, target: *mut u8) {
    // SAFETY: by contract.
    unsafe {
        std::arch::asm!(
            "movups {a}, [{source}]",
            "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]",
            "movups {d}, [{source} + 48]",
            "movups [{target}], {a}",
            "movups [{target} + 16], {b}",
            "movups [{target} + 32], {c}",
            "movups [{target} + 48], {d}",
            source = in(reg) source,
            target = in(reg) target,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies whole blocks, by instructions, and returns how many bytes: all, or a multiple of 64. As fast as `memcpy`, which
/// is for memory that stands still.
///
/// # Safety
///
/// `source` is readable and `target` writable for `len >= 64`; they do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_blocks(source: *const u8, target: *mut u8, len: usize) -> usize {
    if len >= COPY_STRING_MIN {
        // SAFETY: by contract; the direction flag is clear, as everywhere in Rust.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _, inout("rsi") source => _, inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
        return len;
    }
    let blocks = len & !63;
    // SAFETY: by contract: `at` goes from 0 to `blocks` in steps of 64, at least once, and stays below `len`.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{source} + {at}]",
            "movups {b}, [{source} + {at} + 16]",
            "movups {c}, [{source} + {at} + 32]",
            "movups {d}, [{source} + {at} + 48]",
            "movups [{target} + {at}], {a}",
            "movups [{target} + {at} + 16], {b}",
            "movups [{target} + {at} + 32], {c}",
            "movups [{target} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {blocks}",
            "jb 2b",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            at = inout(reg) 0usize => _,
            source = in(reg) source, target = in(reg) target, blocks = in(reg) blocks,
            options(nostack),
        );
    }
    blocks
}

/// Asks for a line that will be written.
#[inline(always)]
pub(super) fn prefetch_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing, writes nothing and never faults, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks for a line that will be read.
#[inline(always)]
pub(super) fn prefetch_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_nothing_behind_it() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let large =
            (300..700).step_by(if cfg!(miri) { 97 } else { 1 }).chain([1023, 2047, 2048, 2049, 4095, 5000]);
        for len in (0..300).chain(large) {
            for room in len..len + 9 {
                let mut words = [0xeeu8; 5040];
                let mut target = vec![0xddu8; room];
                let source = &bytes[..len];
                let aligned = words.as_mut_ptr().align_offset(8);
                // SAFETY: 8-aligned by `align_offset`, and long enough.
                unsafe {
                    copy_in(source.as_ptr(), words.as_mut_ptr().add(aligned), len);
                    copy_out(words.as_ptr().add(aligned), target.as_mut_ptr(), len, room);
                }
                assert_eq!(&target[..len], source);
                assert!(target[len..].iter().skip(7).all(|&octet| octet == 0xdd), "{len} into {room}");
            }
        }
    }
}
