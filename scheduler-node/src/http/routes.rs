//! The routes of a module, written once for the router, the metrics and the handlers.

/// `routes! { State => METHOD "/path" => handler; … }` makes the list `ROUTES` and the router `routes()`.
macro_rules! routes {
    ($state:ty => $($method:ident $path:literal => $handler:expr;)*) => {
        /// Every route, by the pattern that the router matches and the metrics count.
        pub(crate) const ROUTES: &[(axum::http::Method, &str)] = &[$((axum::http::Method::$method, $path)),*];

        fn routes() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, axum::routing::on(axum::routing::MethodFilter::$method, $handler)))*
        }
    };
}

pub(crate) use routes;
