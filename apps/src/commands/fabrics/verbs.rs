//! The RDMA devices of this machine: what the kernel and rdma-core report, and how we would use each.

use serde_json::{Value, json};
use stag_fabric::ExposureKind;
use stag_fabric::verbs::{
    Choice, DeviceLimits, Gid, KernelDevice, OnDemandPaging, Port, Survey, SurveyedDevice,
};
use stag_runtime::{CoreSet, Topology};
use stag_server::values::Size;

/// A line for each fact, to be read and to be searched: what it is, whose it is, the fact.
pub(super) fn lines(survey: &Survey) -> Vec<String> {
    let topology = Topology::read().ok();
    let near = |name: &str| topology.as_ref().and_then(|topology| topology.near(name));
    survey.devices.iter().flat_map(|device| lines_of(device, near(&device.kernel.name))).collect()
}

/// `near`: the cores nearest to the device, if it is not near to all.
fn lines_of(device: &SurveyedDevice, near: Option<CoreSet>) -> Vec<String> {
    let SurveyedDevice { kernel, addresses, limits, choice } = device;
    let name = &kernel.name;
    let mut lines = vec![format!("device  {name}: {}", describe(kernel, near))];
    for port in &kernel.ports {
        let number = port.number;
        lines.push(format!("port    {name}/{number}: {}", describe_port(port)));
        for Gid { index, gid, kind, interface } in &port.gids {
            let facts = [Some(gid), Some(kind).filter(|kind| !kind.is_empty()), interface.as_ref()];
            let facts: Vec<&str> = facts.into_iter().flatten().map(String::as_str).collect();
            lines.push(format!("gid     {name}/{number}/{index}: {}", facts.join(", ")));
        }
    }
    lines.extend(
        addresses
            .iter()
            .map(|found| format!("address {name}: {} of {}", found.address.ip(), found.interface)),
    );
    if let Some(limits) = limits {
        lines.push(format!("limits  {name}: {}", describe_limits(limits)));
        lines.extend(
            limits.paging.as_ref().map(|paging| format!("limits  {name}: {}", describe_paging(paging))),
        );
    }
    match choice {
        Ok(Choice { notes, .. }) => {
            lines.extend(notes.iter().map(|note| format!("stag    {name}: {note}")));
        }
        Err(why) => lines.push(format!("stag    {name}: not used: {why}")),
    }
    lines
}

fn describe(device: &KernelDevice, near: Option<CoreSet>) -> String {
    let mut facts = vec![device.transport.clone()];
    facts.extend(device.is_software.then(|| "software".to_owned()));
    facts.extend(device.board.clone());
    facts.extend(device.firmware.as_ref().map(|version| format!("firmware {version}")));
    facts.extend(device.numa_node.map(|node| format!("NUMA node {node}")));
    facts.extend(near.map(|near| format!("near to cores {near}")));
    facts.join(", ")
}

fn describe_port(port: &Port) -> String {
    let facts = [&port.state, &port.physical_state, &port.link_layer, &port.rate];
    let mut facts: Vec<String> = facts.into_iter().filter(|fact| !fact.is_empty()).cloned().collect();
    facts.extend(port.mtu.map(|mtu| format!("MTU {mtu}")));
    facts.join(", ")
}

fn describe_limits(limits: &DeviceLimits) -> String {
    let windows = match (limits.windows, limits.windows_type_2) {
        (0, _) => "no memory windows".to_owned(),
        (count, true) => format!("{count} memory windows, of type 2 too"),
        (count, false) => format!("{count} memory windows, none of type 2"),
    };
    let shared = match limits.shared_receive_queues {
        0 => "no shared receive queues".to_owned(),
        count => format!("{count} shared receive queues of {}", limits.shared_receives),
    };
    let region = match limits.region_len {
        u64::MAX => "any length".to_owned(),
        len => Size(len).to_string(),
    };
    format!(
        "{} QPs of {} requests of {} pieces, {} CQs of {} entries, {} regions of {region}, {windows}, {shared}, RDMA Reads {} in {} out; atomics are not needed",
        limits.queue_pairs,
        limits.requests,
        limits.pieces,
        limits.completion_queues,
        limits.completions,
        limits.regions,
        limits.reads_in,
        limits.reads_out,
    )
}

fn describe_paging(paging: &OnDemandPaging) -> String {
    let which = match paging {
        OnDemandPaging { operations, .. } if operations.is_empty() => "none".to_owned(),
        OnDemandPaging { operations, implicit: false } => operations.join(", "),
        OnDemandPaging { operations, implicit: true } => {
            format!("{}, of all memory at once", operations.join(", "))
        }
    };
    format!("on-demand paging: {which}; not used: all memory is pinned")
}

/// The same for programs.
pub(super) fn objects(survey: &Survey) -> Vec<Value> {
    let topology = Topology::read().ok();
    let near = |name: &str| topology.as_ref().and_then(|topology| topology.near(name));
    let devices = survey.devices.iter();
    devices.map(|device| object(device, survey.chosen.as_ref(), near(&device.kernel.name))).collect()
}

fn object(device: &SurveyedDevice, chosen: Option<&String>, near: Option<CoreSet>) -> Value {
    let SurveyedDevice { kernel, addresses, limits, choice } = device;
    let ports: Vec<Value> = kernel.ports.iter().map(port).collect();
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|found| json!({ "interface": found.interface, "address": found.address.ip().to_string() }))
        .collect();
    let limits = limits.as_ref().map(|limits| {
        let paging = limits.paging.as_ref();
        json!({
            "queue_pairs": limits.queue_pairs,
            "requests": limits.requests,
            "pieces": limits.pieces,
            "completion_queues": limits.completion_queues,
            "completions": limits.completions,
            "regions": limits.regions,
            "region_bytes": limits.region_len,
            "windows": limits.windows,
            "windows_type_2": limits.windows_type_2,
            "shared_receive_queues": limits.shared_receive_queues,
            "shared_receives": limits.shared_receives,
            "reads_in": limits.reads_in,
            "reads_out": limits.reads_out,
            "on_demand_paging": paging
                .map(|paging| json!({ "operations": paging.operations, "implicit": paging.implicit })),
        })
    });
    json!({
        "name": kernel.name,
        "chosen": chosen == Some(&kernel.name),
        "transport": kernel.transport,
        "software": kernel.is_software,
        "board": kernel.board,
        "firmware": kernel.firmware,
        "numa_node": kernel.numa_node,
        "near_cores": near.map(|near| near.to_string()),
        "ports": ports,
        "addresses": addresses,
        "limits": limits,
        "choice": choice.as_ref().ok().map(|choice| json!({
            "exposure": exposure(choice.exposure),
            "inline_bytes": choice.inline_len,
            "reads_in": choice.read_depth.0,
            "reads_out": choice.read_depth.1,
            "notes": choice.notes,
        })),
        "refused": choice.as_ref().err(),
    })
}

fn port(port: &Port) -> Value {
    let gids: Vec<Value> = port
        .gids
        .iter()
        .map(
            |gid| json!({ "index": gid.index, "gid": gid.gid, "type": gid.kind, "interface": gid.interface }),
        )
        .collect();
    json!({
        "number": port.number,
        "state": port.state,
        "physical_state": port.physical_state,
        "link_layer": port.link_layer,
        "rate": port.rate,
        "mtu": port.mtu,
        "gids": gids,
    })
}

/// As the flag `--exposure` takes it.
fn exposure(kind: ExposureKind) -> &'static str {
    match kind {
        ExposureKind::TableEntry => "table",
        ExposureKind::MemoryWindow => "window",
        ExposureKind::Registration => "registration",
        ExposureKind::Standing => "standing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stag_fabric::verbs::{InterfaceAddress, Kernel};

    fn card() -> SurveyedDevice {
        let gid = Gid {
            index: 3,
            gid: "0000:0000:0000:0000:0000:ffff:0a4d:0001".into(),
            kind: "RoCE v2".into(),
            interface: Some("eth2".into()),
        };
        let port = Port {
            number: 1,
            state: "ACTIVE".into(),
            physical_state: "LinkUp".into(),
            link_layer: "Ethernet".into(),
            rate: "100 Gb/sec (4X EDR)".into(),
            mtu: Some(4096),
            gids: vec![gid],
        };
        SurveyedDevice {
            kernel: KernelDevice {
                name: "mlx5_0".into(),
                transport: "InfiniBand or RoCE".into(),
                firmware: Some("22.31.1014".into()),
                board: Some("MT4125".into()),
                is_software: false,
                numa_node: Some(1),
                ports: vec![port],
            },
            addresses: vec![InterfaceAddress {
                interface: "eth2".into(),
                address: "10.77.0.1:0".parse().unwrap(),
            }],
            limits: Some(DeviceLimits {
                queue_pairs: 262_144,
                requests: 32_768,
                pieces: 30,
                completion_queues: 1 << 24,
                completions: 4_194_303,
                regions: 1 << 24,
                region_len: 1 << 40,
                windows: 1 << 24,
                windows_type_2: true,
                shared_receive_queues: 8_388_608,
                shared_receives: 32_767,
                reads_in: 16,
                reads_out: 16,
                paging: Some(OnDemandPaging { operations: vec!["Send", "RDMA Read"], implicit: true }),
            }),
            choice: Ok(Choice {
                exposure: ExposureKind::MemoryWindow,
                inline_len: 256,
                read_depth: (16, 16),
                notes: vec!["Sends of up to 256 octets go inline".into()],
            }),
        }
    }

    fn survey(devices: Vec<SurveyedDevice>) -> Survey {
        let kernel = Kernel { verbs: true, connection_manager: true };
        Survey { rdma_core: None, kernel, chosen: devices.first().map(|it| it.kernel.name.clone()), devices }
    }

    #[test]
    fn each_fact_is_a_line() {
        let lines = lines(&survey(vec![card()]));
        assert_eq!(
            lines,
            [
                "device  mlx5_0: InfiniBand or RoCE, MT4125, firmware 22.31.1014, NUMA node 1",
                "port    mlx5_0/1: ACTIVE, LinkUp, Ethernet, 100 Gb/sec (4X EDR), MTU 4096",
                "gid     mlx5_0/1/3: 0000:0000:0000:0000:0000:ffff:0a4d:0001, RoCE v2, eth2",
                "address mlx5_0: 10.77.0.1 of eth2",
                "limits  mlx5_0: 262144 QPs of 32768 requests of 30 pieces, 16777216 CQs of 4194303 entries, 16777216 \
                 regions of 1 TiB, 16777216 memory windows, of type 2 too, 8388608 shared receive queues of 32767, RDMA \
                 Reads 16 in 16 out; atomics are not needed",
                "limits  mlx5_0: on-demand paging: Send, RDMA Read, of all memory at once; not used: all memory is pinned",
                "stag    mlx5_0: Sends of up to 256 octets go inline",
            ]
        );
    }

    #[test]
    fn a_device_that_is_near_to_some_cores_says_which() {
        let near = "8-15".parse().ok();
        let lines = lines_of(&card(), near);
        assert!(lines[0].ends_with("NUMA node 1, near to cores 8-15"), "{}", lines[0]);
        assert_eq!(object(&card(), None, near)["near_cores"], json!("8-15"));
        assert_eq!(object(&card(), None, None)["near_cores"], Value::Null);
    }

    #[test]
    fn a_device_that_pins_all_memory_says_so_and_one_that_does_not_answer_says_nothing() {
        let with = |paging| {
            let limits = card().limits.map(|limits| DeviceLimits { paging, ..limits });
            lines(&survey(vec![SurveyedDevice { limits, ..card() }])).join("\n")
        };
        let none = "limits  mlx5_0: on-demand paging: none; not used: all memory is pinned";
        assert!(with(Some(OnDemandPaging::default())).contains(none));
        assert!(!with(None).contains("paging"));
    }

    #[test]
    fn a_device_that_is_not_used_says_why() {
        let refused = SurveyedDevice { choice: Err("it is busy".into()), limits: None, ..card() };
        let survey = Survey { chosen: None, ..survey(vec![refused]) };
        assert!(lines(&survey).contains(&"stag    mlx5_0: not used: it is busy".to_owned()));
        let objects = objects(&survey);
        let object = &objects[0];
        assert_eq!((&object["refused"], &object["chosen"]), (&json!("it is busy"), &json!(false)));
        assert_eq!((&object["limits"], &object["choice"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn programs_get_all_of_it() {
        let objects = objects(&survey(vec![card()]));
        let object = &objects[0];
        assert_eq!(object["ports"][0]["gids"][0]["type"], "RoCE v2");
        assert_eq!(object["limits"]["windows_type_2"], true);
        let paging = json!({ "operations": ["Send", "RDMA Read"], "implicit": true });
        assert_eq!(object["limits"]["on_demand_paging"], paging);
        assert_eq!((&object["choice"]["exposure"], &object["chosen"]), (&json!("window"), &json!(true)));
    }
}
