package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// dialer is an environment variable that only the set-gid program has.
const dialer = "CONFORMANCE_DIALER"

// TestDialer is the set-gid program. It prints its primary group and who answers.
func TestDialer(t *testing.T) {
	if os.Getenv(dialer) == "" {
		return
	}
	conn, err := net.DialTimeout("tcp", kerneltest.Outside4+":80", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	banner, _, _ := strings.Cut(string(answer), " ")
	_, _ = fmt.Fprintf(os.Stdout, "group %d: %s (%v)\n", os.Getegid(), banner, err)
}

// fsGroupPod is a pod whose containers all belong to the proxy's group.
func fsGroupPod(change func(app, proxy *corev1.SecurityContext)) *corev1.Pod {
	app, proxy := &corev1.SecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000))}, &corev1.SecurityContext{RunAsUser: new(int64(1337)), RunAsGroup: new(int64(1337))}
	if change != nil {
		change(app, proxy)
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(1337))},
		Containers:      []corev1.Container{{Name: "app", SecurityContext: app}, {Name: intent.ProxyContainer, SecurityContext: proxy}},
	}}
	pod.Annotations = map[string]string{intent.KeyInitialize: "true"}
	return pod
}

// Each container of a pod with an fsGroup can make a program that acts as that group. It does not pass for the proxy.
func TestRules_setGIDProgram_isCaptured(t *testing.T) {
	config := intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}
	pod, err := intent.Of(fsGroupPod(nil), nil, config)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := intent.Of(fsGroupPod(func(app, proxy *corev1.SecurityContext) {
		app.AllowPrivilegeEscalation, proxy.RunAsUser = new(false), new(int64(0)) // TPROXY's proxy is known by its group alone
	}), nil, config)
	if err != nil || bound.Spec.ProxyGID != 1337 {
		t.Fatalf("known by group %d, error %v", bound.Spec.ProxyGID, err)
	}
	for name, c := range map[string]struct {
		spec          iptables.Spec
		noNewPrivs    bool
		group, answer string
	}{
		"the pod's rules":                          {spec: pod.Spec, group: "1337", answer: "PROXY:15001"},
		"rules that go by the group, as a control": {spec: with(func(*iptables.Spec) {}), group: "1337", answer: "WORLD:80"},
		"no new privileges":                        {spec: bound.Spec, noNewPrivs: true, group: "1000", answer: "PROXY:15001"},
	} {
		for _, b := range backends(t) {
			t.Run(name+"/"+b.Name(), func(t *testing.T) {
				space, world := kerneltest.NewPod(t)
				if _, err := b.Apply(t.Context(), space.Path(), configuration{spec: c.spec}.rules(t)); err != nil {
					t.Fatal(err)
				}
				kerneltest.Listen(t, space, kerneltest.Proxy, "PROXY", 15001)
				kerneltest.Listen(t, world, kerneltest.App, "WORLD", 80)
				got := runSetGID(t, space, c.noNewPrivs)
				if want := fmt.Sprintf("group %s: %s (<nil>)", c.group, c.answer); !strings.Contains(got, want) {
					t.Errorf("%s\nwant %s", got, want)
				}
			})
		}
	}
}

// runSetGID has a member of the group 1337 without any capability make a set-gid copy of this program and run it, and returns what that prints.
func runSetGID(t *testing.T, space *netns.NS, noNewPrivs bool) string {
	t.Helper()
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOSUID != 0 {
		kerneltest.SkipOrFail(t, "%s has no set-gid programs (error %v)", dir, err)
	}
	given := filepath.Join(dir, "given")
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(given, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	run := "exec ./own"
	if noNewPrivs {
		run = "exec " + kerneltest.ProgramPath(t, "setpriv") + " --no-new-privs ./own"
	}
	var out []byte
	err = space.Inside(func() error {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", "cp given own; chgrp 1337 own; chmod 2755 own; "+run+" -test.run='^TestDialer$'")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), dialer+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000, Groups: []uint32{1337}}}
		said, err := cmd.CombinedOutput()
		out = said
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
