// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What wakes the recorder while it records: commands, signals, times, and the end of the command.

use super::options::Options;
use crate::control::Command;
use crate::delay::Step;
use crate::error::{Error, Result};
use crate::hotplugged::Hotplugged;
use crate::message::{raw, say};
use crate::session::Switch;
use crate::sys::Workload;
use crate::watch::{Wake, Watch};

/// Handles the wakes of a recording.
pub(super) struct Desk {
    pub(super) watch: Watch,
    pub(super) switch: Switch,
    pub(super) hotplugged: Hotplugged,
    /// The command's exit status.
    pub(super) status: Option<i32>,
    /// Number of commands to answer when the file is finished.
    pub(super) owed: u32,
}

/// The work that a wake leaves for the owner of the rings and the file.
pub(super) enum Todo {
    Nothing,
    End,
    /// A snapshot; whether a command asked for it.
    Snapshot(bool),
    Rotate,
}

impl Desk {
    /// Does what a wake asks for, except for work on the rings and the file.
    pub(super) fn todo(
        &mut self,
        wake: Wake,
        options: &Options,
        workload: Option<&mut Workload>,
    ) -> Result<Todo> {
        Ok(match wake {
            Wake::Stop | Wake::Gone | Wake::Over => Todo::End,
            Wake::Child => {
                if let Some(workload) = workload {
                    self.status = workload.try_wait().map_err(|e| {
                        Error::failed(format!("cannot learn how the command ended: {e}"))
                    })?;
                }
                if self.status.is_some() {
                    Todo::End
                } else {
                    Todo::Nothing
                }
            }
            Wake::Signal if options.snapshot.is_some() => Todo::Snapshot(false),
            Wake::Signal | Wake::Rotate => Todo::Rotate,
            Wake::Step(Step::End) => Todo::End,
            Wake::Step(step) => {
                self.switch.set(step == Step::On, None)?;
                Todo::Nothing
            }
            Wake::Command(command) => self.command(command, options)?,
            Wake::Beat => {
                self.hotplugged.look();
                Todo::Nothing
            }
            Wake::Ring(..) => Todo::Nothing,
        })
    }

    fn command(&mut self, command: Command, options: &Options) -> Result<Todo> {
        match command {
            Command::Enable(event) => self.set(true, event.as_deref())?,
            Command::Disable(event) => self.set(false, event.as_deref())?,
            Command::Evlist => raw(self.switch.names().join("\n") + "\n"),
            Command::Ping => {}
            Command::Snapshot if options.snapshot.is_some() => return Ok(Todo::Snapshot(true)),
            Command::Snapshot => say("there are no snapshots without -S"),
            Command::Stop => {
                self.owed += 1;
                return Ok(Todo::End);
            }
            Command::Unknown(line) => {
                say(format_args!(
                    "`{}` is no command; they are: enable, disable, snapshot, evlist, ping, stop",
                    line.escape_debug()
                ));
                return Ok(Todo::Nothing);
            }
        }
        self.watch.answer();
        Ok(Todo::Nothing)
    }

    fn set(&self, on: bool, event: Option<&str>) -> Result<()> {
        match event {
            Some(name) if !self.switch.names().iter().any(|known| known == name) => {
                say(format_args!("there is no event `{name}` in this recording"));
                Ok(())
            }
            event => self.switch.set(on, event),
        }
    }
}
