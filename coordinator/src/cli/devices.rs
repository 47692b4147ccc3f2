//! `brigade devices` prints what this machine can compute with.

use anyhow::Result;
use brigade_engine::device::{DeviceWish, Devices, KINDS, Listed, MatrixUnits, list, split_beside};
use brigade_engine::kernels;
use brigade_plan::format_bytes;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::printing::output;

/// Show what this machine can compute with.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade devices
  brigade serve -m model.gguf --device vulkan:0,1")]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Devices that local workers take in turn, as `--device` names them: `auto`, `cpu`, `vulkan:0`, `vulkan:0,1`,
/// `vulkan:0+cpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceList(pub Vec<String>);

impl std::str::FromStr for DeviceList {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let prefixes = KINDS.iter().map(|kind| format!("{}:", kind.prefix));
        let prefix = prefixes.into_iter().find(|prefix| list.starts_with(prefix));
        let prefix = prefix.unwrap_or_default();
        let with_prefix = |item: &str| {
            if item.chars().all(|c| c.is_ascii_digit()) {
                format!("{prefix}{item}")
            } else {
                item.to_owned()
            }
        };
        let names: Vec<String> = list.split(',').map(with_prefix).collect();
        names
            .iter()
            .try_for_each(|name| split_beside(name)?.0.parse::<DeviceWish>().map(|_| ()))?;
        Ok(Self(names))
    }
}

/// Runs the command.
pub fn execute(args: DevicesArgs) -> Result<()> {
    let tables: Vec<&str> = kernels::available().iter().map(|table| table.name).collect();
    let fast = kernels::fast().map(|table| table.name);
    let (found, reasons) = list();
    let missing: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    let auto = Devices::default().choose(&DeviceWish::Auto);
    if args.json {
        let gpus: Vec<Value> = found.iter().map(in_json).collect();
        let all = json!({
            "cpu": { "kernels": tables, "fast_math": fast },
            "gpus": gpus,
            "no_gpus": (!missing.is_empty()).then(|| missing.join("; ")),
            "auto": auto.to_string(),
        });
        return output::json(&all);
    }
    let fast = fast.map_or(String::new(), |fast| format!("; with --fast-math {fast}"));
    output::line(format_args!("cpu        kernels {}{fast}", tables.join(", ")))?;
    for listed in &found {
        let (name, facts) = (listed.name().to_string(), &listed.facts);
        output::line(format_args!(
            "{name:<10} {} ({}), {} of {} free, {}, {} {}, {}, {}",
            facts.name,
            facts.class,
            format_bytes(facts.free_bytes),
            format_bytes(facts.device_bytes),
            facts.driver_text(),
            listed.kind.title,
            facts.api_version,
            units(facts.units),
            sending(facts.sends_beside),
        ))?;
        if let Some(why) = facts.refused {
            output::line(format_args!("{:<10} not used: {why}", ""))?;
        }
    }
    for reason in missing {
        output::line(format_args!("no GPU: {reason}"))?;
    }
    output::line(format_args!("--device auto takes {auto}"))
}

/// How weights come that are sent while it serves, such as experts.
fn sending(is_beside: bool) -> &'static str {
    if is_beside { "computes while weights come" } else { "computes and takes weights in turn" }
}

/// The matrix units for products. Those for int8 are always used, those for f16 with `--fast-math`.
fn units(units: MatrixUnits) -> String {
    match (units.left_alone, units.int8, units.f16) {
        (Some(why), ..) => format!("matrix units left alone: {why}"),
        (None, true, true) => "int8 and f16 matrix units".to_owned(),
        (None, true, false) => "int8 matrix units, none for f16".to_owned(),
        (None, false, true) => "f16 matrix units, none for int8".to_owned(),
        (None, false, false) => "no matrix units for int8 or f16".to_owned(),
    }
}

fn in_json(listed: &Listed) -> Value {
    let facts = &listed.facts;
    json!({
        "device": listed.name().to_string(),
        "name": facts.name,
        "kind": facts.class.to_string(),
        "memory_bytes": facts.device_bytes,
        "free_bytes": facts.free_bytes,
        "int8_matrix_units": facts.units.int8,
        "f16_matrix_units": facts.units.f16,
        "no_units": facts.units.left_alone,
        "sends_beside": facts.sends_beside,
        "refused": facts.refused,
        "driver": facts.driver,
        "driver_version": facts.driver_version,
        (listed.kind.prefix): facts.api_version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_each_device() {
        let list = |text: &str| text.parse::<DeviceList>().map(|list| list.0);
        assert_eq!(list("auto").unwrap(), ["auto"]);
        assert_eq!(list("vulkan:0,2").unwrap(), ["vulkan:0", "vulkan:2"]);
        assert_eq!(list("cpu,vulkan:1").unwrap(), ["cpu", "vulkan:1"]);
        for wrong in ["", "0", "cuda", "vulkan:0,", "avx2"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }
}
