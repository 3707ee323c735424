//! The routes of a room, spelled once: as they are matched, as they are counted, and who answers.

/// `routes! { State => METHOD "/path" => handler; … }` makes the list `ROUTES` and the router `routes()`.
macro_rules! routes {
    ($state:ty => $($method:ident $path:literal => $handler:expr;)*) => {
        /// Every route there is, as it is matched and as it is counted.
        pub(crate) const ROUTES: &[(axum::http::Method, &str)] = &[$((axum::http::Method::$method, $path)),*];

        fn routes() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, axum::routing::on(axum::routing::MethodFilter::$method, $handler)))*
        }
    };
}

pub(crate) use routes;
