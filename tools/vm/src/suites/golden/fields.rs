// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of a recording that a decoder reads.

use std::collections::BTreeMap;

use perfdata::{Attr, Feature, File, RecordType};

/// The values of the fields, by name, such as `unit.config`.
pub(super) type Fields = BTreeMap<String, String>;

/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_DUMMY`.
const DUMMY: (u32, u64) = (1, 9);

/// Reads the fields of a recording. Skips the records of names and mappings, which are those of programs on this machine.
pub(super) fn fields(bytes: &[u8]) -> Result<Fields, String> {
    let file = File::parse(bytes).map_err(|error| error.to_string())?;
    let mut fields = Fields::new();
    if !file.is_finished() {
        return Err("it was not finished".to_owned());
    }
    for (attr, ids) in file.events() {
        let name = match (attr.kind, attr.config) {
            DUMMY => "tracking",
            _ => "unit",
        };
        let known = fields
            .keys()
            .any(|key| key.starts_with(&format!("{name}.")));
        let name = format!("{name}{}", if known { "2" } else { "" });
        event(&mut fields, &name, attr);
        fields.insert(format!("{name}.ids"), ids.len().to_string());
    }
    for record in file.records() {
        let record = record.map_err(|error| error.to_string())?;
        let kind = record.kind;
        let name = kind
            .name()
            .map_or_else(|| kind.0.to_string(), str::to_owned);
        if kind.is_user() {
            fields.insert(format!("record.{name}"), "there".to_owned());
        }
        let words = record.body.chunks_exact(8);
        let words = words.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        if kind == RecordType::AUXTRACE_INFO || kind == RecordType::TIME_CONV {
            for (number, word) in words.enumerate() {
                fields.insert(format!("{name}[{number:02}]"), format!("{word:#x}"));
            }
        }
    }
    for section in file.features() {
        let name = match section.feature {
            Feature::TOTAL_MEM => "TOTAL_MEM".to_owned(),
            Feature::AUXTRACE => "AUXTRACE".to_owned(),
            Feature::SAMPLE_TIME => "SAMPLE_TIME".to_owned(),
            Feature::NOTES => "NOTES".to_owned(),
            Feature(number) => number.to_string(),
        };
        fields.insert(format!("feature.{name}"), "there".to_owned());
        if section.feature == Feature::PMU_MAPPINGS {
            let pmus = section.pmu_mappings().map_err(|error| error.to_string())?;
            let pmus = pmus.into_iter();
            fields.extend(pmus.map(|(kind, name)| (format!("pmu.{name}"), kind.to_string())));
        }
    }
    Ok(fields)
}

/// The fields of an event that are not 0.
fn event(fields: &mut Fields, name: &str, attr: &Attr) {
    let mut put = |field: &str, value: u64| {
        if value != 0 {
            fields.insert(format!("{name}.{field}"), format!("{value:#x}"));
        }
    };
    put("type", attr.kind.into());
    put("config", attr.config);
    put("config1", attr.config1);
    put("config2", attr.config2);
    put("config3", attr.config3);
    put("config4", attr.config4);
    put("sample_period", attr.sample_period);
    put("wakeup", attr.wakeup.into());
    put("bp_type", attr.bp_type.into());
    put("branch_sample_type", attr.branch_sample_type);
    put("aux_watermark", attr.aux_watermark.into());
    put("aux_sample_size", attr.aux_sample_size.into());
    put("aux_action", attr.aux_action.into());
    put("clockid", u64::try_from(attr.clockid).unwrap_or(u64::MAX));
    for (bit, _) in attr.flags.iter_names() {
        put(&format!("flags.{bit}"), 1);
    }
    for (bit, _) in attr.sample_type.iter_names() {
        put(&format!("sample_type.{bit}"), 1);
    }
    for (bit, _) in attr.read_format.iter_names() {
        put(&format!("read_format.{bit}"), 1);
    }
}
