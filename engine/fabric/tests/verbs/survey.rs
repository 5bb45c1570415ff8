//! What a survey finds on machines that cannot, and on those that can.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use stag_fabric::Provider;
use stag_fabric::verbs::{OnDemandPaging, Survey, VerbsConfig, survey_with};
use stag_rdma_core_sys as sys;

use crate::fake;
use crate::side::*;

/// A sysfs with these folders.
fn sysfs(parts: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("stag-survey-{}-{number}", std::process::id()));
    for part in parts {
        std::fs::create_dir_all(root.join("class").join(part)).expect("a temporary folder");
    }
    root
}

fn survey_of(
    core: Result<&'static sys::RdmaCore, sys::LoadError>,
    config: &VerbsConfig,
    parts: &[&str],
) -> Survey {
    let root = sysfs(parts);
    // SAFETY: the fake does as the manual pages say.
    let found = unsafe { survey_with(core, &root, config) };
    let _ = std::fs::remove_dir_all(root);
    found
}

/// The states that a machine may be in, from nothing to all: each says what is missing and how to get it.
#[test]
fn a_survey_says_what_is_missing() {
    const KERNEL: [&str; 2] = ["infiniband_verbs", "misc/rdma_cm"];
    WINDOWS.begin();
    let config = &WINDOWS.config();
    let absent =
        || sys::LoadError::Library { library: "libibverbs.so.1", problem: "no such file".to_owned() };
    let problem = |survey: &Survey| survey.problem().unwrap_or_default();

    let survey = survey_of(Err(absent()), config, &KERNEL);
    assert!(problem(&survey).contains("libibverbs1 librdmacm1 ibverbs-providers"), "{}", problem(&survey));
    fake::fail("rdma_get_devices", 0, libc::ENODEV);
    let survey = survey_of(Ok(&fake::FAKE), config, &[]);
    assert!(problem(&survey).contains("modprobe -a ib_uverbs rdma_ucm"), "{}", problem(&survey));
    fake::fail("rdma_create_event_channel", 0, libc::ENODEV);
    let survey = survey_of(Ok(&fake::FAKE), config, &KERNEL[..1]);
    assert!(problem(&survey).contains("modprobe rdma_ucm"), "{}", problem(&survey));
    fake::with(|world| world.has_device = false);
    let survey = survey_of(Ok(&fake::FAKE), config, &KERNEL);
    assert!(problem(&survey).contains("rdma link add"), "{}", problem(&survey));
    assert!(survey.devices.is_empty());
    fake::with(|world| world.has_device = true);
    let survey = survey_of(Ok(&fake::FAKE), config, &KERNEL);
    assert_eq!(survey.problem(), None);
    assert_eq!(survey.chosen.as_deref(), Some("fake0"));
    assert_eq!(fake::leaks(), []);
}

/// What `open` would choose is what a survey tells, for each kind of device; and a device that cannot be opened says why.
#[test]
fn a_survey_tells_what_open_would_choose() {
    for kind in KINDS {
        kind.begin();
        let config = &kind.config();
        let survey = survey_of(
            Ok(&fake::FAKE),
            config,
            &["infiniband_verbs", "misc/rdma_cm", "infiniband/fake0", "infiniband/gone1"],
        );
        let [fake0, gone1] = &survey.devices[..] else { panic!("{survey:?}") };
        assert_eq!(gone1.choice, Err("rdma-core does not list it".to_owned()));
        let opened = open(config.clone()).expect("a device");
        let choice = fake0.choice.as_ref().expect("it can be opened");
        assert_eq!(choice.exposure, opened.limits().exposure);
        assert_eq!(choice.notes, opened.notes());
        // Each choice is said, with its reason.
        for subject in ["exposed", "inline", "RDMA Reads at once", "Receives", "polled for"] {
            assert!(choice.notes.iter().any(|note| note.contains(subject)), "{subject}: {:?}", choice.notes);
        }
        let limits = fake0.limits.as_ref().expect("rdma-core was asked");
        assert_eq!(limits.windows_type_2, kind.has_windows);
        assert!(fake0.addresses.iter().any(|found| found.interface == "lo"), "{:?}", fake0.addresses);
        drop(opened);
        fake::fail("ibv_create_cq", 0, libc::ENOMEM);
        let survey = survey_of(Ok(&fake::FAKE), config, &["infiniband_verbs", "misc/rdma_cm"]);
        assert_eq!(survey.chosen, None);
        assert!(survey.problem().is_some_and(|problem| problem.contains("completion queue")), "{survey:?}");
        assert_eq!(fake::leaks(), []);
    }
}

/// On-demand paging: what the device may do so, that it cannot, that its library or driver is too old to say, that it failed.
#[test]
fn a_survey_tells_what_is_paged_on_demand() {
    let found = || {
        let survey = survey_of(Ok(&fake::FAKE), &WINDOWS.config(), &["infiniband_verbs", "misc/rdma_cm"]);
        assert_eq!(survey.problem(), None);
        survey.devices[0].limits.clone().expect("rdma-core was asked").paging
    };
    let all = (
        sys::IBV_ODP_SUPPORT | sys::IBV_ODP_SUPPORT_IMPLICIT,
        sys::IBV_ODP_SUPPORT_SEND | sys::IBV_ODP_SUPPORT_READ,
    );
    let begin = || {
        WINDOWS.begin();
        fake::with(|world| world.paging = all);
    };
    let none = Some(OnDemandPaging::default());

    begin();
    assert_eq!(found(), Some(OnDemandPaging { operations: vec!["Send", "RDMA Read"], implicit: true }));
    fake::with(|world| world.paging.0 = sys::IBV_ODP_SUPPORT);
    assert_eq!(found(), Some(OnDemandPaging { operations: vec!["Send", "RDMA Read"], implicit: false }));
    fake::with(|world| world.paging.0 = 0);
    assert_eq!(found(), none);

    let old: [fn(&mut sys::verbs_context); 3] = [
        |context| context.context.abi_compat = std::ptr::null_mut(),
        // One that ends before the operation.
        |context| context.sz -= std::mem::offset_of!(sys::verbs_context, query_device_ex) + 8,
        |context| context.query_device_ex = None,
    ];
    for age in old {
        begin();
        fake::with(|world| world.age(age));
        assert_eq!(found(), none);
        assert_eq!(fake::calls("query_device_ex"), 0);
    }
    for (error, expected) in [(libc::EOPNOTSUPP, none.clone()), (libc::ENOSYS, none), (libc::EIO, None)] {
        begin();
        fake::fail("query_device_ex", 0, error);
        assert_eq!(found(), expected, "{error}");
    }
    assert_eq!(fake::leaks(), []);
}
