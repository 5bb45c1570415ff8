//! Layouts and devices of pNFS. What depends on the layout type stays opaque.

use super::value::{FixedOpaque, List, Refusal, Time4, unions};
use super::{Bitmap, Opaque, StateId, Status4, Verifier4};
use crate::nfs3::value::{numbers, records};

/// Octets of a value that depends on the layout type at most. No RFC sets a limit (8267-6.2-a).
pub const LAYOUT_BODY_LEN_MAX: u32 = 1 << 20;
/// Layouts, devices or errors in one message at most. No RFC sets a limit.
pub const LAYOUTS_MAX: u32 = 4096;
/// Layout types in one attribute at most. No RFC sets a limit; five are registered.
pub const LAYOUT_TYPES_MAX: u32 = 64;

/// Identifies a device (deviceid4).
pub type LayoutDeviceId = FixedOpaque<16>;
/// A value that depends on the layout type.
pub type LayoutBody<'a> = Opaque<'a, LAYOUT_BODY_LEN_MAX>;
/// Layout types: files 1, objects 2, blocks 3, flexible files 4, SCSI 5.
pub type LayoutTypes<'a> = List<'a, u32, LAYOUT_TYPES_MAX>;
/// When to use layouts (mdsthreshold4).
pub type ThresholdHints<'a> = List<'a, ThresholdHint<'a>, LAYOUT_TYPES_MAX>;

records! {
    /// A body and its layout type: layouthint4, layout_content4, device_addr4, layoutupdate4.
    TypedBody<'a> {
        /// Layout type.
        layout_type: u32,
        /// What depends on it.
        body: LayoutBody<'a>,
    }

    /// When to use layouts of a type (threshold_item4).
    ThresholdHint<'a> {
        /// Layout type.
        layout_type: u32,
        /// Which hints there are.
        hints: Bitmap<'a>,
        /// Their values.
        values: LayoutBody<'a>,
    }

    /// A layout (layout4).
    Layout<'a> {
        /// First octet.
        offset: u64,
        /// Octets; all ones means to the end.
        length: u64,
        /// For what.
        io_mode: LayoutIoMode,
        /// The layout.
        content: TypedBody<'a>,
    }

    /// GETDEVICEINFO4args.
    GetdeviceinfoArguments<'a> {
        /// Which device.
        device: LayoutDeviceId,
        /// Layout type.
        layout_type: u32,
        /// Bytes of the answer at most.
        maxcount: u32,
        /// Which notifications are wanted.
        notifications: Bitmap<'a>,
    }

    /// GETDEVICEINFO4resok.
    GetdeviceinfoOk<'a> {
        /// Where the device is.
        address: TypedBody<'a>,
        /// Which notifications there are.
        notifications: Bitmap<'a>,
    }

    /// GETDEVICELIST4args.
    GetdevicelistArguments {
        /// Layout type.
        layout_type: u32,
        /// Devices at most.
        maxdevices: u32,
        /// Where to go on.
        cookie: u64,
        /// As the server gave it.
        verifier: Verifier4,
    }

    /// GETDEVICELIST4resok.
    GetdevicelistOk<'a> {
        /// Where to go on.
        cookie: u64,
        /// To be sent back with it.
        verifier: Verifier4,
        /// The devices.
        devices: List<'a, LayoutDeviceId, LAYOUTS_MAX>,
        /// The last device is among them.
        eof: bool,
    }

    /// LAYOUTCOMMIT4args.
    LayoutcommitArguments<'a> {
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
        /// The layout is from before a restart of the server.
        is_reclaim: bool,
        /// The layout.
        stateid: StateId,
        /// The last octet written, if the file may have grown.
        last_write: Option<u64>,
        /// When it was written.
        modified: Option<Time4>,
        /// What depends on the layout type.
        update: TypedBody<'a>,
    }

    /// LAYOUTGET4args.
    LayoutgetArguments {
        /// Say later when there is one.
        signal_available: bool,
        /// Layout type.
        layout_type: u32,
        /// For what.
        io_mode: LayoutIoMode,
        /// First octet.
        offset: u64,
        /// Octets wanted.
        length: u64,
        /// Octets wanted at least.
        minimum: u64,
        /// The open, lock, delegation or layout.
        stateid: StateId,
        /// Bytes of the answer at most.
        maxcount: u32,
    }

    /// LAYOUTGET4resok.
    LayoutgetOk<'a> {
        /// The layouts end with the last CLOSE.
        return_on_close: bool,
        /// The layouts.
        stateid: StateId,
        /// Each.
        layouts: List<'a, Layout<'a>, LAYOUTS_MAX>,
    }

    /// LAYOUTRETURN4args.
    LayoutreturnArguments<'a> {
        /// The layout is from before a restart of the server.
        is_reclaim: bool,
        /// Layout type.
        layout_type: u32,
        /// For what.
        io_mode: LayoutIoMode,
        /// Which.
        what: LayoutReturn<'a>,
    }

    /// A part of a file's layouts (layoutreturn_file4).
    LayoutReturnFile<'a> {
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
        /// The layouts.
        stateid: StateId,
        /// What depends on the layout type.
        body: LayoutBody<'a>,
    }

    /// LAYOUTERROR4args.
    LayouterrorArguments<'a> {
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
        /// The layout.
        stateid: StateId,
        /// What failed.
        errors: List<'a, DeviceError, LAYOUTS_MAX>,
    }

    /// An error of a device (device_error4).
    DeviceError {
        /// Which device.
        device: LayoutDeviceId,
        /// What it answered.
        status: Status4,
        /// To which operation, by its number.
        operation: u32,
    }

    /// Transfers and their octets (io_info4).
    IoCounts {
        /// Transfers.
        count: u64,
        /// Octets.
        octets: u64,
    }

    /// LAYOUTSTATS4args.
    LayoutstatsArguments<'a> {
        /// First octet.
        offset: u64,
        /// Octets.
        length: u64,
        /// The layout.
        stateid: StateId,
        /// READs.
        read: IoCounts,
        /// WRITEs.
        write: IoCounts,
        /// Which device.
        device: LayoutDeviceId,
        /// What depends on the layout type.
        update: TypedBody<'a>,
    }
}

/// A hint for layouts (layouthint4).
pub type LayoutHint<'a> = TypedBody<'a>;

unions! {
    /// Which layouts are returned (layoutreturn4).
    LayoutReturn<'a> {
        /// Those of a part of the current file.
        File = 1 (LayoutReturnFile<'a>),
        /// Those of the current file system.
        FileSystem = 2,
        /// All of the client.
        All = 3,
    }
}

numbers! {
    /// What a layout is for (layoutiomode4).
    LayoutIoMode {
        /// Reading.
        Read = 1,
        /// Reading and writing.
        ReadWrite = 2,
        /// Any, of those returned or recalled.
        Any = 3,
    }
}

/// GETDEVICEINFO4res: if `maxcount` was too small, it says how many bytes would do.
pub type GetdeviceinfoResult<'a> = Result<GetdeviceinfoOk<'a>, Refusal<u32, { Status4::TooSmall.number() }>>;
/// LAYOUTGET4res: if it should be asked for later, whether the server will signal.
pub type LayoutgetResult<'a> = Result<LayoutgetOk<'a>, Refusal<bool, { Status4::LayoutTryLater.number() }>>;
