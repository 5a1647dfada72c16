// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings of one CPU that are made piece by piece.

use std::io::Cursor;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, Encode, EventDesc, Features, FinishedInit, Flags, IdIndex,
    IdIndexEntry, Lost, Read, SampleId, SampleType, Writer,
};

use crate::pattern::packets;

/// A recording of CPU 1, by one event of the PMU `pattern`.
pub struct Recording {
    file: Writer<Cursor<Vec<u8>>>,
    attr: Attr,
    overwrite: bool,
    /// Number of the file, if the recording has several.
    pub part: Option<u32>,
    /// Note about CPUs that were offline.
    pub offline: Option<&'static str>,
    /// Note about the unit of the references.
    pub reference: Option<&'static str>,
    /// Whether another recorder made it, without notes.
    pub foreign: bool,
    /// Offset of the next piece and of the next record.
    pub head: u64,
    time: u64,
}

impl Recording {
    /// An empty recording.
    #[must_use]
    pub fn new(overwrite: bool) -> Self {
        let attr = Attr {
            kind: 42,
            flags: Flags::SAMPLE_ID_ALL,
            sample_type: SampleType::IDENTIFIER
                | SampleType::TID
                | SampleType::TIME
                | SampleType::CPU,
            read_format: Read::FORMAT,
            ..Attr::default()
        };
        let mut file = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![9])]).unwrap();
        let entry = IdIndexEntry {
            id: 9,
            idx: 0,
            cpu: 1,
            tid: -1,
        };
        file.record(&IdIndex(&[entry]), None).unwrap();
        file.record(&FinishedInit, None).unwrap();
        Self {
            file,
            attr,
            overwrite,
            part: None,
            offline: None,
            reference: None,
            foreign: false,
            head: 0,
            time: 0,
        }
    }

    /// Adds a record of the recorder.
    pub fn say(&mut self, record: &impl Encode) -> &mut Self {
        self.file.record(record, None).unwrap();
        self
    }

    /// The sample id of the next record: its time is a millisecond after the one before.
    pub fn id(&mut self) -> SampleId {
        self.time += 1_000_000;
        SampleId {
            pid: Some(1),
            tid: Some(1),
            time: Some(self.time),
            id: Some(9),
            stream_id: None,
            cpu: Some(1),
        }
    }

    /// Adds an AUX record.
    pub fn aux(&mut self, size: u64, flags: AuxFlags) -> &mut Self {
        let aux = Aux {
            offset: self.head,
            size,
            flags,
        };
        let id = self.id();
        self.file.record(&aux, Some((&id, &self.attr))).unwrap();
        self
    }

    /// Adds a record of type LOST, for one lost record.
    pub fn lost(&mut self) -> &mut Self {
        let id = self.id();
        self.file
            .record(&Lost { id: 9, lost: 1 }, Some((&id, &self.attr)))
            .unwrap();
        self
    }

    /// Adds a piece of trace.
    pub fn piece(&mut self, bytes: &[u8]) -> &mut Self {
        self.padded(bytes, 0)
    }

    /// Adds a piece, padded to a multiple of 8 with this byte.
    pub fn padded(&mut self, bytes: &[u8], with: u8) -> &mut Self {
        let reference = self.id().time.unwrap();
        self.read_at(bytes, with, reference)
    }

    /// Adds a padded piece with this reference.
    pub fn read_at(&mut self, bytes: &[u8], with: u8, reference: u64) -> &mut Self {
        let size = u64::try_from(bytes.len()).unwrap();
        let mut whole = bytes.to_vec();
        whole.resize(bytes.len().next_multiple_of(8), with);
        let aux = Auxtrace {
            size: size.next_multiple_of(8),
            offset: self.head,
            reference,
            idx: 0,
            tid: u32::MAX,
            cpu: 1,
        };
        self.file.auxtrace(&aux).unwrap();
        self.file.payload(&whole).unwrap();
        self.head += size;
        self
    }

    /// Adds an AUX record and its trace.
    pub fn trace(&mut self, bytes: &[u8], flags: AuxFlags) -> &mut Self {
        self.aux(u64::try_from(bytes.len()).unwrap(), flags)
            .piece(bytes)
    }

    /// Sets the offset of the next piece and of the next record.
    pub fn at(&mut self, head: u64) -> &mut Self {
        self.head = head;
        self
    }

    /// Adds a READ record with the count of the event.
    pub fn count(&mut self, value: u64) -> &mut Self {
        let id = self.id();
        let read = Read {
            pid: 1,
            tid: 1,
            value,
            enabled: 1,
            running: 1,
            id: 9,
        };
        self.file.record(&read, Some((&id, &self.attr))).unwrap();
        self
    }

    /// The finished file.
    pub fn bytes(&mut self) -> Vec<u8> {
        self.ended("whole")
    }

    /// The finished file. `ended` is the value of its note `ended`.
    pub fn ended(&mut self, ended: &str) -> Vec<u8> {
        let event = EventDesc {
            attr: self.attr.clone(),
            ids: vec![9],
            name: "pattern//".into(),
        };
        let mut features = Features::new();
        let mode = if self.overwrite {
            "overwrite"
        } else {
            "linear"
        };
        let part = self.part.map(|part| part.to_string());
        let mut notes = vec![("aux_size", "256"), ("mode", mode), ("ended", ended)];
        notes.extend(part.as_deref().map(|part| ("part", part)));
        notes.extend(self.offline.map(|cpus| ("offline", cpus)));
        notes.extend(self.reference.map(|what| ("reference", what)));
        features.events(&[event]).pmu_mappings(&[(42, "pattern")]);
        if !self.foreign {
            features.notes(&notes);
        }
        self.file.try_finish(&features).unwrap();
        self.file.get_ref().get_ref().clone()
    }
}

/// A recording of 1024 bytes in three files.
#[must_use]
pub fn parts() -> [Vec<u8>; 3] {
    let all = packets(0, 1024);
    [
        (1, "rotated", 0..200),
        (2, "rotated", 200..600),
        (3, "whole", 600..1024),
    ]
    .map(|(number, ended, bytes)| {
        let mut made = Recording::new(false);
        made.part = Some(number);
        made.head = u64::try_from(bytes.start).unwrap();
        made.trace(&all[bytes], AuxFlags::empty());
        if ended == "whole" {
            made.count(1024);
        }
        made.ended(ended)
    })
}
