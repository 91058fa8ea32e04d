package xdsenvoy

import (
	"log/slog"
	"testing"
	"time"
)

func TestParseOptions_ofPilotAgent(t *testing.T) {
	got, err := ParseOptions([]string{
		"-c", "etc/istio/proxy/envoy-rev.json", "--drain-time-s", "45", "--drain-strategy", "immediate", "--local-address-ip-version", "v4",
		"--file-flush-interval-msec", "1000", "--disable-hot-restart", "--allow-unknown-static-fields", "-l", "warning", "--component-log-level=misc:error", "--concurrency", "2",
	})
	if want := (Options{"etc/istio/proxy/envoy-rev.json", 45 * time.Second, slog.LevelWarn}); err != nil || got != want {
		t.Errorf("read is %+v, %v", got, err)
	}
}

func TestParseOptions_refuses(t *testing.T) {
	for name, args := range map[string][]string{
		"an argument that Envoy has not": {"-c", "x", "--no-such", "1"},
		"a missing value":                {"-c"},
		"no configuration":               {"--drain-time-s", "1"},
		"a time that is none":            {"-c", "x", "--drain-time-s", "soon"},
		"a level that is none":           {"-c", "x", "-l", "loud"},
	} {
		if o, err := ParseOptions(args); err == nil {
			t.Errorf("%s is taken: %+v", name, o)
		}
	}
}

// bootstrap has what pilot-agent's has: types that are not linked in, and commas that JSON does not allow.
const bootstrap = `{
  "node": {"id": "sidecar~10.0.0.1~a.b~b.svc", "metadata": {"ISTIO_VERSION": "1.31.0"}},
  "stats_config": {"stats_tags": []},
  "bootstrap_extensions": [{"name": "x", "typed_config": {"@type": "type.googleapis.com/udpa.type.v1.TypedStruct"}}],
  "admin": {"access_log": [{"name": "file", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/null"}}],
    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
  "dynamic_resources": {"ads_config": {"api_type": "DELTA_GRPC", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}},
  "static_resources": {"clusters": [{"name": "xds-grpc", "load_assignment": {"endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": "./XDS"}}}}]}]}}],
    "listeners": [{"name": "0.0.0.0_15021", "additionalAddresses": [], "listener_filters": [{"name": "proxy", "typed_config": {"@type": "type.googleapis.com/no.such.Type", "a": true,}}]}]}
}`

func TestParseBootstrap(t *testing.T) {
	b, err := parseBootstrap([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	cluster, incremental, err := adsOf(b)
	if cluster != "xds-grpc" || !incremental || err != nil {
		t.Errorf("the stream is of %q, incremental %v, %v", cluster, incremental, err)
	}
	if path, err := agentSocket(b, cluster); path != "./XDS" || unixTarget(path) != "unix:./XDS" || err != nil {
		t.Errorf("its socket is %q, %v", path, err)
	}
	if _, err := agentSocket(b, "sds-grpc"); err == nil {
		t.Error("a socket of a missing cluster is found")
	}
	if b.GetAdmin().GetAddress().GetSocketAddress().GetPortValue() != 15000 || len(b.GetStaticResources().GetListeners()) != 1 {
		t.Errorf("read is %v", b)
	}
}
