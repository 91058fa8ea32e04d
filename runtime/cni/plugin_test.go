package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=3f1c9d52"

// call is one start of the plugin, as the runtime starts it.
type call struct {
	env   map[string]string
	stdin string
}

func newCall(command, stdin string) call {
	return call{stdin: stdin, env: map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": "8f5e2b", "CNI_NETNS": "/var/run/netns/cni-8f5e", "CNI_IFNAME": "eth0",
		"CNI_ARGS": podArgs, "CNI_PATH": "/opt/cni/bin",
	}}
}

func (c call) with(env map[string]string) call {
	c.env = maps.Clone(c.env)
	maps.Copy(c.env, env)
	return c
}

func (c call) run(tb testing.TB) (code int, out, log string) {
	tb.Helper()
	cmd := exec.Command(program(PluginType))
	for k, v := range c.env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &o, &e
	err := cmd.Run()
	if cmd.ProcessState == nil {
		tb.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// conf returns a configuration as a runtime passes it; more is added to its keys.
func conf(socket, more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "kc", "type": %q, "socket": %q, "timeoutSeconds": 5, "prevResult": {"cniVersion": "1.0.0"}%s}`,
		PluginType, socket, more)
}

func TestAdd_previousResult_passesByteForByte(t *testing.T) {
	for name, result := range map[string]string{
		"as written by people":         "{\n\t\"cniVersion\" : \"1.0.0\",\r\n  \"ips\":[ ] , \"x\": 1.50e+3}",
		"unknown keys":                 `{"cniVersion":"1.0.0","vendor":{"b":1,"a":2},"a":null}`,
		"the same key twice":           `{"cniVersion":"1.0.0","ips":[],"ips":[{"address":"10.0.0.2/24"}]}`,
		"numbers beyond a float":       `{"cniVersion":"1.0.0","n":123456789012345678901234567890}`,
		"letters that could be quoted": `{"cniVersion":"1.0.0","t":"<é&\u00e9>"}`,
	} {
		t.Run(name, func(t *testing.T) {
			stdin := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "kc", "type": "x", "socket": %q, "prevResult": %s }`, serve(t, &fakeAgent{}), result)
			code, out, log := newCall("ADD", stdin).run(t)
			if code != 0 || out != result {
				t.Errorf("exit %d %s\n got %q\nwant %q", code, log, out, result)
			}
		})
	}
}

func TestPlugin_noRulesNeeded_passesWithoutTheAgent(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"a container that is no pod's": {"CNI_ARGS": ""},
		"a container of nerdctl":       {"CNI_ARGS": "IgnoreUnknown=1;NERDCTL=yes;"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &fakeAgent{err: errNever}
			socket := serve(t, agent)
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				code, out, log := newCall(command, conf(socket, "")).with(env).run(t)
				want := map[string]string{"ADD": `{"cniVersion": "1.0.0"}`}[command]
				if code != 0 || out != want || len(agent.requests()) != 0 {
					t.Errorf("%s: exit %d, out %q, log %q, asked %q", command, code, out, log, agent.requests())
				}
			}
		})
	}
}

var errNever = fmt.Errorf("the agent must not be asked")

// wrongCalls are calls that no runtime should make, with the code and a word of the answer.
func wrongCalls() map[string]struct {
	stdin string
	env   map[string]string
	code  uint
	word  string
} {
	type m = map[string]string
	ok := conf("/nonexistent/cni.sock", "")
	type wrong = struct {
		stdin string
		env   map[string]string
		code  uint
		word  string
	}
	return map[string]wrong{
		"nothing on stdin":             {"", nil, types.ErrDecodingFailure, "unexpected end"},
		"half an object":               {ok[:40], nil, types.ErrDecodingFailure, "unexpected end"},
		"an array":                     {"[]", nil, types.ErrDecodingFailure, "array"},
		"a word":                       {"hello", nil, types.ErrDecodingFailure, "invalid character"},
		"null":                         {"null", nil, types.ErrInvalidNetworkConfig, "name"},
		"two objects":                  {ok + ok, nil, types.ErrDecodingFailure, "after top-level"},
		"a byte order mark":            {"\ufeff" + ok, nil, types.ErrDecodingFailure, "invalid character"},
		"binary rubbish":               {"\x00\xff\xfe{", nil, types.ErrDecodingFailure, "invalid character"},
		"deeper than any parser goes":  {strings.Repeat("[", 100000), nil, types.ErrDecodingFailure, "depth"},
		"no name":                      {strings.Replace(ok, `"name": "kc"`, `"x": 1`, 1), nil, types.ErrInvalidNetworkConfig, "name"},
		"a name like a path":           {strings.Replace(ok, `"kc"`, `"../kc"`, 1), nil, types.ErrInvalidNetworkConfig, "name"},
		"a name that is a number":      {strings.Replace(ok, `"kc"`, `7`, 1), nil, types.ErrDecodingFailure, "number"},
		"no version":                   {strings.Replace(ok, `"cniVersion": "1.0.0", "name"`, `"name"`, 1), nil, types.ErrIncompatibleCNIVersion, "incompatible"},
		"a version that is too old":    {strings.Replace(ok, "1.0.0", "0.2.0", 1), nil, types.ErrIncompatibleCNIVersion, "incompatible"},
		"a version that is too new":    {strings.Replace(ok, "1.0.0", "9.0.0", 1), nil, types.ErrIncompatibleCNIVersion, "incompatible"},
		"an invalid version":           {strings.Replace(ok, "1.0.0", "one", 1), nil, types.ErrIncompatibleCNIVersion, "incompatible"},
		"no previous result":           {strings.Replace(ok, "prevResult", "x", 1), nil, types.ErrInvalidNetworkConfig, "prevResult"},
		"a previous result of null":    {strings.Replace(ok, `{"cniVersion": "1.0.0"}`, "null", 1), nil, types.ErrInvalidNetworkConfig, "prevResult"},
		"a previous result in words":   {strings.Replace(ok, `{"cniVersion": "1.0.0"}`, `"ok"`, 1), nil, types.ErrInvalidNetworkConfig, "prevResult"},
		"a previous result in a list":  {strings.Replace(ok, `{"cniVersion": "1.0.0"}`, `[{}]`, 1), nil, types.ErrInvalidNetworkConfig, "prevResult"},
		"a relative socket":            {conf("run/cni.sock", ""), nil, types.ErrInvalidNetworkConfig, "socket"},
		"a socket by detours":          {conf("/run/../run/cni.sock", ""), nil, types.ErrInvalidNetworkConfig, "socket"},
		"a socket that is a number":    {strings.Replace(ok, `"/nonexistent/cni.sock"`, "1", 1), nil, types.ErrInvalidNetworkConfig, "socket"},
		"no time at all":               {strings.Replace(ok, `Seconds": 5`, `Seconds": 0`, 1), nil, types.ErrInvalidNetworkConfig, "timeoutSeconds"},
		"negative time":                {strings.Replace(ok, `Seconds": 5`, `Seconds": -5`, 1), nil, types.ErrInvalidNetworkConfig, "timeoutSeconds"},
		"more time than the kubelet's": {strings.Replace(ok, `Seconds": 5`, `Seconds": 9999`, 1), nil, types.ErrInvalidNetworkConfig, "timeoutSeconds"},
		"a time as a string":           {strings.Replace(ok, `Seconds": 5`, `Seconds": "5s"`, 1), nil, types.ErrInvalidNetworkConfig, "timeoutSeconds"},
		"a boolean as a string":        {conf("/s", `, "failOpen": "yes"`), nil, types.ErrInvalidNetworkConfig, "failOpen"},
		"one namespace, not a list":    {conf("/s", `, "excludeNamespaces": "kube-system"`), nil, types.ErrInvalidNetworkConfig, "excludeNamespaces"},
		"a pattern of every namespace": {conf("/s", `, "excludeNamespaces": ["*"]`), nil, types.ErrInvalidNetworkConfig, "excludeNamespaces"},

		"an unknown command":                {ok, m{"CNI_COMMAND": "MEND"}, types.ErrInvalidEnvironmentVariables, "MEND"},
		"no container":                      {ok, m{"CNI_CONTAINERID": ""}, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		"a container like a path":           {ok, m{"CNI_CONTAINERID": "../8f5e"}, types.ErrInvalidEnvironmentVariables, "containerID"},
		"a container of a thousand letters": {ok, m{"CNI_CONTAINERID": strings.Repeat("a", 1000)}, types.ErrInvalidEnvironmentVariables, "sandbox ID"},
		"no namespace":                      {ok, m{"CNI_NETNS": ""}, types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		"a relative namespace":              {ok, m{"CNI_NETNS": "run/netns/x"}, types.ErrInvalidEnvironmentVariables, "network namespace"},
		"a namespace by detours":            {ok, m{"CNI_NETNS": "/var/run/netns/../../../proc/1/ns/net"}, types.ErrInvalidEnvironmentVariables, "network namespace"},
		"a namespace of two lines":          {ok, m{"CNI_NETNS": "/var/run/netns/a\nb"}, types.ErrInvalidEnvironmentVariables, "network namespace"},
		"the caller's own namespace":        {ok, m{"CNI_NETNS": "/proc/self/ns/net"}, types.ErrInvalidEnvironmentVariables, "each process"},
		"the thread's own namespace":        {ok, m{"CNI_NETNS": "/proc/thread-self/ns/net"}, types.ErrInvalidEnvironmentVariables, "each process"},
		"a descriptor":                      {ok, m{"CNI_NETNS": "/proc/self/fd/0"}, types.ErrInvalidEnvironmentVariables, "each process"},
		"standard input":                    {ok, m{"CNI_NETNS": "/dev/stdin"}, types.ErrInvalidEnvironmentVariables, "each process"},
		"no interface":                      {ok, m{"CNI_IFNAME": ""}, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME"},
		"an interface like a path":          {ok, m{"CNI_IFNAME": "a/b"}, types.ErrInvalidEnvironmentVariables, "interface"},
		"no path":                           {ok, m{"CNI_PATH": ""}, types.ErrInvalidEnvironmentVariables, "CNI_PATH"},
		"arguments that are no pairs":       {ok, m{"CNI_ARGS": "K8S_POD_NAME"}, types.ErrInvalidEnvironmentVariables, "CNI_ARGS"},
		"a pod without a namespace":         {ok, m{"CNI_ARGS": "K8S_POD_NAME=cart"}, types.ErrInvalidEnvironmentVariables, "pod namespace"},
		"a namespace without a pod":         {ok, m{"CNI_ARGS": "K8S_POD_NAMESPACE=shop"}, types.ErrInvalidEnvironmentVariables, "pod name"},
		"a pod like a path":                 {ok, m{"CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=../cart"}, types.ErrInvalidEnvironmentVariables, "pod name"},
		"a namespace in capitals":           {ok, m{"CNI_ARGS": "K8S_POD_NAMESPACE=Shop;K8S_POD_NAME=cart"}, types.ErrInvalidEnvironmentVariables, "pod namespace"},
		"a UID of blanks":                   {ok, m{"CNI_ARGS": podArgs + " "}, types.ErrInvalidEnvironmentVariables, "UID"},
	}
}

func TestPlugin_wrongCall_getsCNIError(t *testing.T) {
	for name, c := range wrongCalls() {
		t.Run(name, func(t *testing.T) {
			code, out, log := newCall("ADD", c.stdin).with(c.env).run(t)
			var got types.Error
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("exit %d: no error as CNI wants it: %q %q", code, out, log)
			}
			if code != 1 || got.Code != c.code || !strings.Contains(got.Msg, c.word) {
				t.Errorf("exit %d, %+v; want code %d and %q", code, got, c.code, c.word)
			}
			if c.env["CNI_COMMAND"] != "" {
				return
			}
			if code, out, _ := newCall("DEL", c.stdin).with(c.env).run(t); code != 0 || out != "" {
				t.Errorf("DEL: exit %d, %q; it must always succeed", code, out)
			}
		})
	}
}

func TestPlugin_noCommand_printsWhatItIs(t *testing.T) {
	code, out, log := call{}.run(t)
	if code != 0 || out != "" || !strings.Contains(log, "CNI plugin") || !strings.Contains(log, "0.3.1, 0.4.0, 1.0.0, 1.1.0") {
		t.Errorf("exit %d, %q, %q", code, out, log)
	}
}

func TestAdd_refused_namesTheReason(t *testing.T) {
	agent := &fakeAgent{err: fmt.Errorf(`annotation traffic.sidecar.istio.io/excludeInboundPorts: value "http": want ports`)}
	for _, more := range []string{"", `, "failOpen": true`} { // failOpen is for an agent that is away, not for one that refuses
		code, out, _ := newCall("ADD", conf(serve(t, agent), more)).run(t)
		var got types.Error
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		want := types.Error{Code: codeRefused, Msg: "pod shop/cart-0: " + agent.err.Error()}
		if diff := cmp.Diff(want, got); diff != "" || code != 1 {
			t.Errorf("exit %d (-want +got):\n%s", code, diff)
		}
	}
}

// CRI-O calls CHECK for every sandbox when it starts. An agent that is slow must not cost a pod its address.
func TestCheck_agentAway_succeeds(t *testing.T) {
	agent := &fakeAgent{err: errNever}
	if code, out, _ := newCall("CHECK", conf(serve(t, agent), "")).run(t); code != 1 || !strings.Contains(out, errNever.Error()) {
		t.Errorf("an agent that refuses: exit %d, %s", code, out)
	}
	agent = &fakeAgent{hold: make(chan struct{})}
	start := time.Now()
	code, out, _ := newCall("CHECK", conf(serve(t, agent), "")).run(t)
	if took := time.Since(start); code != 0 || took > 3*time.Second {
		t.Errorf("a slow agent: exit %d, %s, after %v", code, out, took)
	}
}

// serveAnswer listens as an agent that answers each connection with the given function, or accepts none if it is nil.
func serveAnswer(t *testing.T, answer func(*net.UnixConn)) (socket string) {
	t.Helper()
	socket = filepath.Join(tempDir(t), "s")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: socket, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if answer == nil {
		return socket
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			answer(c)
			defer c.Close()
		}
	}()
	return socket
}

// An agent that is stopped, dies during a request or sends an invalid answer counts as one that does not answer.
func TestPlugin_agentSilent_isAway(t *testing.T) {
	for name, answer := range map[string]func(*net.UnixConn){
		"stopped":        nil,
		"dies":           func(c *net.UnixConn) { _ = c.Close() },
		"sends rubbish":  func(c *net.UnixConn) { _, _ = c.Write([]byte("?")) },
		"sends neither":  func(c *net.UnixConn) { _, _ = c.Write([]byte("{}")) },
		"sends too much": func(c *net.UnixConn) { _, _ = c.Write(bytes.Repeat([]byte(" "), maxMessage+10)) },
		"sends a string": func(c *net.UnixConn) { _, _ = c.Write([]byte(`{"ok": "yes"}`)) },
	} {
		t.Run(name, func(t *testing.T) {
			socket := serveAnswer(t, answer)
			stdin := strings.Replace(conf(socket, ""), `Seconds": 5`, `Seconds": 1`, 1)
			start := time.Now()
			code, out, _ := newCall("ADD", stdin).run(t)
			if code != 1 || !strings.Contains(out, `"code": 11`) || !strings.Contains(out, "did not answer") {
				t.Errorf("ADD: exit %d, %s", code, out)
			}
			for _, command := range []string{"DEL", "CHECK"} {
				asked := time.Now()
				code, out, log := newCall(command, strings.Replace(stdin, `Seconds": 1`, `Seconds": 60`, 1)).run(t)
				if took := time.Since(asked); code != 0 || took > 3*time.Second {
					t.Errorf("%s: exit %d, %s %s, after %v", command, code, out, log, took)
				}
			}
			wantNoStatus(t, stdin)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v with a timeout of one second", took)
			}
			code, out, log := newCall("ADD", strings.Replace(stdin, `{"cniV`, `{"failOpen": true, "cniV`, 1)).run(t)
			if code != 0 || out != `{"cniVersion": "1.0.0"}` || !strings.Contains(log, "passed without the agent") {
				t.Errorf("ADD with failOpen: exit %d, %s %s", code, out, log)
			}
		})
	}
}

// wantNoStatus checks that STATUS fails if it needs the agent and the agent does not answer.
func wantNoStatus(t *testing.T, conf string) {
	t.Helper()
	asked := time.Now()
	conf = strings.NewReplacer(`Seconds": 1`, `Seconds": 60`, `{"cniVersion": "1.0.0"`, `{"statusNeedsAgent": true, "cniVersion": "1.1.0"`).Replace(conf)
	code, out, log := newCall("STATUS", conf).run(t)
	if took := time.Since(asked); code != 1 || !strings.Contains(out, `"code": 50`) || took > 4*time.Second {
		t.Errorf("STATUS: exit %d, %s %s, after %v", code, out, log, took)
	}
}
