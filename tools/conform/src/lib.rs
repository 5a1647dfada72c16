// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `conform` shares with other programs that test drivers in a guest.

pub mod allocations;
