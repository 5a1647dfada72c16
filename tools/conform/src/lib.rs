// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Code that `conform` shares with other programs that test drivers in a guest.

pub mod allocations;
