//! Lanes as transactions use them: locked, decided about, stored.
