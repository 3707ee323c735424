//! Takes in submissions that do not come over HTTP: messages ([`amqp`]) and rows that applications insert ([`sql`]).
//! Both have the desk judge them, as HTTP does.

pub mod amqp;
pub mod sql;
