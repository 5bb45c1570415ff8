//! Names of the programs' status numbers, as the RFCs have them.

/// Numbers with their names, ascending.
type Names = [(u32, &'static str)];

fn find(names: &Names, number: u32) -> Option<&'static str> {
    names.binary_search_by_key(&number, |(number, _)| *number).ok().map(|at| names[at].1)
}

/// Names an nfsstat3; those of version 2 are the same as far as they go.
#[must_use]
pub fn nfs3(number: u32) -> Option<&'static str> {
    find(&NFS3, number)
}

/// Names a mountstat3.
#[must_use]
pub fn mount3(number: u32) -> Option<&'static str> {
    find(&MOUNT3, number)
}

/// Names an nfsstat4.
#[must_use]
pub fn nfs4(number: u32) -> Option<&'static str> {
    find(&NFS4, number)
}

static NFS3: [(u32, &str); 30] = [
    (0, "NFS3_OK"),
    (1, "NFS3ERR_PERM"),
    (2, "NFS3ERR_NOENT"),
    (5, "NFS3ERR_IO"),
    (6, "NFS3ERR_NXIO"),
    (13, "NFS3ERR_ACCES"),
    (17, "NFS3ERR_EXIST"),
    (18, "NFS3ERR_XDEV"),
    (19, "NFS3ERR_NODEV"),
    (20, "NFS3ERR_NOTDIR"),
    (21, "NFS3ERR_ISDIR"),
    (22, "NFS3ERR_INVAL"),
    (27, "NFS3ERR_FBIG"),
    (28, "NFS3ERR_NOSPC"),
    (30, "NFS3ERR_ROFS"),
    (31, "NFS3ERR_MLINK"),
    (63, "NFS3ERR_NAMETOOLONG"),
    (66, "NFS3ERR_NOTEMPTY"),
    (69, "NFS3ERR_DQUOT"),
    (70, "NFS3ERR_STALE"),
    (71, "NFS3ERR_REMOTE"),
    (10001, "NFS3ERR_BADHANDLE"),
    (10002, "NFS3ERR_NOT_SYNC"),
    (10003, "NFS3ERR_BAD_COOKIE"),
    (10004, "NFS3ERR_NOTSUPP"),
    (10005, "NFS3ERR_TOOSMALL"),
    (10006, "NFS3ERR_SERVERFAULT"),
    (10007, "NFS3ERR_BADTYPE"),
    (10008, "NFS3ERR_JUKEBOX"),
    (10009, "NFS3ERR_OFFLINE"),
];

static MOUNT3: [(u32, &str); 10] = [
    (0, "MNT3_OK"),
    (1, "MNT3ERR_PERM"),
    (2, "MNT3ERR_NOENT"),
    (5, "MNT3ERR_IO"),
    (13, "MNT3ERR_ACCES"),
    (20, "MNT3ERR_NOTDIR"),
    (22, "MNT3ERR_INVAL"),
    (63, "MNT3ERR_NAMETOOLONG"),
    (10004, "MNT3ERR_NOTSUPP"),
    (10006, "MNT3ERR_SERVERFAULT"),
];

static NFS4: [(u32, &str); 113] = [
    (0, "NFS4_OK"),
    (1, "NFS4ERR_PERM"),
    (2, "NFS4ERR_NOENT"),
    (5, "NFS4ERR_IO"),
    (6, "NFS4ERR_NXIO"),
    (13, "NFS4ERR_ACCESS"),
    (17, "NFS4ERR_EXIST"),
    (18, "NFS4ERR_XDEV"),
    (20, "NFS4ERR_NOTDIR"),
    (21, "NFS4ERR_ISDIR"),
    (22, "NFS4ERR_INVAL"),
    (27, "NFS4ERR_FBIG"),
    (28, "NFS4ERR_NOSPC"),
    (30, "NFS4ERR_ROFS"),
    (31, "NFS4ERR_MLINK"),
    (63, "NFS4ERR_NAMETOOLONG"),
    (66, "NFS4ERR_NOTEMPTY"),
    (69, "NFS4ERR_DQUOT"),
    (70, "NFS4ERR_STALE"),
    (10001, "NFS4ERR_BADHANDLE"),
    (10003, "NFS4ERR_BAD_COOKIE"),
    (10004, "NFS4ERR_NOTSUPP"),
    (10005, "NFS4ERR_TOOSMALL"),
    (10006, "NFS4ERR_SERVERFAULT"),
    (10007, "NFS4ERR_BADTYPE"),
    (10008, "NFS4ERR_DELAY"),
    (10009, "NFS4ERR_SAME"),
    (10010, "NFS4ERR_DENIED"),
    (10011, "NFS4ERR_EXPIRED"),
    (10012, "NFS4ERR_LOCKED"),
    (10013, "NFS4ERR_GRACE"),
    (10014, "NFS4ERR_FHEXPIRED"),
    (10015, "NFS4ERR_SHARE_DENIED"),
    (10016, "NFS4ERR_WRONGSEC"),
    (10017, "NFS4ERR_CLID_INUSE"),
    (10018, "NFS4ERR_RESOURCE"),
    (10019, "NFS4ERR_MOVED"),
    (10020, "NFS4ERR_NOFILEHANDLE"),
    (10021, "NFS4ERR_MINOR_VERS_MISMATCH"),
    (10022, "NFS4ERR_STALE_CLIENTID"),
    (10023, "NFS4ERR_STALE_STATEID"),
    (10024, "NFS4ERR_OLD_STATEID"),
    (10025, "NFS4ERR_BAD_STATEID"),
    (10026, "NFS4ERR_BAD_SEQID"),
    (10027, "NFS4ERR_NOT_SAME"),
    (10028, "NFS4ERR_LOCK_RANGE"),
    (10029, "NFS4ERR_SYMLINK"),
    (10030, "NFS4ERR_RESTOREFH"),
    (10031, "NFS4ERR_LEASE_MOVED"),
    (10032, "NFS4ERR_ATTRNOTSUPP"),
    (10033, "NFS4ERR_NO_GRACE"),
    (10034, "NFS4ERR_RECLAIM_BAD"),
    (10035, "NFS4ERR_RECLAIM_CONFLICT"),
    (10036, "NFS4ERR_BADXDR"),
    (10037, "NFS4ERR_LOCKS_HELD"),
    (10038, "NFS4ERR_OPENMODE"),
    (10039, "NFS4ERR_BADOWNER"),
    (10040, "NFS4ERR_BADCHAR"),
    (10041, "NFS4ERR_BADNAME"),
    (10042, "NFS4ERR_BAD_RANGE"),
    (10043, "NFS4ERR_LOCK_NOTSUPP"),
    (10044, "NFS4ERR_OP_ILLEGAL"),
    (10045, "NFS4ERR_DEADLOCK"),
    (10046, "NFS4ERR_FILE_OPEN"),
    (10047, "NFS4ERR_ADMIN_REVOKED"),
    (10048, "NFS4ERR_CB_PATH_DOWN"),
    (10049, "NFS4ERR_BADIOMODE"),
    (10050, "NFS4ERR_BADLAYOUT"),
    (10051, "NFS4ERR_BAD_SESSION_DIGEST"),
    (10052, "NFS4ERR_BADSESSION"),
    (10053, "NFS4ERR_BADSLOT"),
    (10054, "NFS4ERR_COMPLETE_ALREADY"),
    (10055, "NFS4ERR_CONN_NOT_BOUND_TO_SESSION"),
    (10056, "NFS4ERR_DELEG_ALREADY_WANTED"),
    (10057, "NFS4ERR_BACK_CHAN_BUSY"),
    (10058, "NFS4ERR_LAYOUTTRYLATER"),
    (10059, "NFS4ERR_LAYOUTUNAVAILABLE"),
    (10060, "NFS4ERR_NOMATCHING_LAYOUT"),
    (10061, "NFS4ERR_RECALLCONFLICT"),
    (10062, "NFS4ERR_UNKNOWN_LAYOUTTYPE"),
    (10063, "NFS4ERR_SEQ_MISORDERED"),
    (10064, "NFS4ERR_SEQUENCE_POS"),
    (10065, "NFS4ERR_REQ_TOO_BIG"),
    (10066, "NFS4ERR_REP_TOO_BIG"),
    (10067, "NFS4ERR_REP_TOO_BIG_TO_CACHE"),
    (10068, "NFS4ERR_RETRY_UNCACHED_REP"),
    (10069, "NFS4ERR_UNSAFE_COMPOUND"),
    (10070, "NFS4ERR_TOO_MANY_OPS"),
    (10071, "NFS4ERR_OP_NOT_IN_SESSION"),
    (10072, "NFS4ERR_HASH_ALG_UNSUPP"),
    (10074, "NFS4ERR_CLIENTID_BUSY"),
    (10075, "NFS4ERR_PNFS_IO_HOLE"),
    (10076, "NFS4ERR_SEQ_FALSE_RETRY"),
    (10077, "NFS4ERR_BAD_HIGH_SLOT"),
    (10078, "NFS4ERR_DEADSESSION"),
    (10079, "NFS4ERR_ENCR_ALG_UNSUPP"),
    (10080, "NFS4ERR_PNFS_NO_LAYOUT"),
    (10081, "NFS4ERR_NOT_ONLY_OP"),
    (10082, "NFS4ERR_WRONG_CRED"),
    (10083, "NFS4ERR_WRONG_TYPE"),
    (10084, "NFS4ERR_DIRDELEG_UNAVAIL"),
    (10085, "NFS4ERR_REJECT_DELEG"),
    (10086, "NFS4ERR_RETURNCONFLICT"),
    (10087, "NFS4ERR_DELEG_REVOKED"),
    (10088, "NFS4ERR_PARTNER_NOTSUPP"),
    (10089, "NFS4ERR_PARTNER_NO_AUTH"),
    (10090, "NFS4ERR_UNION_NOTSUPP"),
    (10091, "NFS4ERR_OFFLOAD_DENIED"),
    (10092, "NFS4ERR_WRONG_LFS"),
    (10093, "NFS4ERR_BADLABEL"),
    (10094, "NFS4ERR_OFFLOAD_NO_REQS"),
    (10095, "NFS4ERR_NOXATTR"),
    (10096, "NFS4ERR_XATTR2BIG"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_in_order_and_those_of_the_codecs() {
        for names in [&NFS3[..], &MOUNT3, &NFS4] {
            assert!(names.is_sorted_by(|(a, _), (b, _)| a < b));
        }
        let plain = |name: Option<&str>| name.map(|name| name.replace('_', ""));
        for status in stag_wire::nfs3::Status::ALL {
            let name = format!("NFS3ERR{}", format!("{status:?}").to_uppercase());
            assert_eq!(plain(nfs3(status.number())), Some(name));
        }
        for status in stag_wire::mount3::Status::ALL {
            let name = format!("MNT3ERR{}", format!("{status:?}").to_uppercase());
            assert_eq!(plain(mount3(status.number())), Some(name));
        }
        let name =
            |status: &stag_wire::nfs4::Status4| format!("NFS4ERR{}", format!("{status:?}").to_uppercase());
        for status in &stag_wire::nfs4::Status4::ALL[1..] {
            assert_eq!(plain(nfs4(status.number())), Some(name(status)));
        }
        assert_eq!(stag_wire::nfs4::Status4::ALL.len(), NFS4.len());
    }
}
