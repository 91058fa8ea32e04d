package image

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ProxyUser is the identity of a sidecar, which redirection rules exempt.
const ProxyUser = "1337:1337"

// The images that every cluster holds.
const (
	PauseTag     = "localhost/pause:1"
	ToolsTag     = "localhost/tools:1"
	HAProxyTag   = "localhost/haproxy:1"
	NginxTag     = "localhost/nginx:1"
	TestAppTag   = "localhost/testapp:1"
	TestProxyTag = "localhost/testproxy:1"
)

const (
	busybox = "/bin/busybox"
	haproxy = "/usr/sbin/haproxy"
	nginx   = "/usr/sbin/nginx"
	// nginxStream is the module that passes TCP on.
	nginxStream = "/usr/lib/nginx/modules/ngx_stream_module.so"
)

// OwnCommands are the commands of this module that become images or that the node runs, by directory name below cmd/.
func OwnCommands() []string { return []string{"pause", "testapp", "testproxy", "runcfit"} }

// debianPrograms are the real tools of the tools image; what busybox has under the same name is left out.
func debianPrograms() []string {
	return []string{"/usr/sbin/nft", "/usr/sbin/xtables-nft-multi", "/usr/sbin/conntrack", "/bin/ip", "/bin/ss"}
}

// Inputs are the machine's files that the catalog copies: a change of one of them makes other images.
func Inputs() []string { return append(debianPrograms(), busybox, haproxy, nginx, nginxStream) }

// Catalog describes every image, by file name. bin holds the static builds of OwnCommands.
func Catalog(ctx context.Context, bin string) (map[string]Spec, error) {
	own := func(command string) []Entry {
		return append(users(), Entry{Path: "/" + command, Source: filepath.Join(bin, command)})
	}
	tools, err := toolsEntries(ctx)
	if err != nil {
		return nil, err
	}
	proxy, err := Closure(ctx, haproxy)
	if err != nil {
		return nil, err
	}
	web, err := Closure(ctx, nginx, nginxStream)
	if err != nil {
		return nil, err
	}
	return map[string]Spec{
		"pause":     {Tag: PauseTag, Entrypoint: []string{"/pause"}, Entries: own("pause")},
		"testapp":   {Tag: TestAppTag, Entrypoint: []string{"/testapp"}, Entries: own("testapp")},
		"testproxy": {Tag: TestProxyTag, Entrypoint: []string{"/testproxy"}, User: ProxyUser, Entries: own("testproxy")},
		"haproxy": {
			Tag: HAProxyTag, User: ProxyUser, Entries: slices.Concat(users(), proxy, shell()),
			Entrypoint: []string{haproxy, "-db", "-f", "/etc/haproxy/haproxy.cfg"},
			StopSignal: "SIGUSR1", // as HAProxy's own image has it: SIGTERM breaks all connections
		},
		"nginx": {Tag: NginxTag, User: ProxyUser, Entries: slices.Concat(users(), web), Entrypoint: []string{nginx, "-e", "stderr", "-g", "daemon off;"}},
		"tools": {Tag: ToolsTag, Entries: append(append(users(), tools...), Entry{Path: "/usr/bin/testapp", Source: filepath.Join(bin, "testapp")})},
	}, nil
}

// users names identities for programs that look them up. The proxy's is not among them: an image would give its user the group, too, which
// real applications' images do not.
func users() []Entry {
	return []Entry{
		{Path: "/etc/passwd", Text: "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"},
		{Path: "/etc/group", Text: "root:x:0:\nnogroup:x:65534:\n"},
	}
}

// shell is what a command needs that waits for a file before it starts the proxy.
func shell() []Entry {
	return []Entry{{Path: busybox, Source: busybox}, {Path: "/bin/sh", Link: "busybox"}, {Path: "/bin/sleep", Link: "busybox"}}
}

// toolsEntries joins the real tools with busybox for all the rest, the shell among it.
func toolsEntries(ctx context.Context) ([]Entry, error) {
	entries, err := Closure(ctx, debianPrograms()...)
	if err != nil {
		return nil, err
	}
	extensions, err := iptablesExtensions()
	if err != nil {
		return nil, err
	}
	entries = append(entries, Entry{Path: busybox, Source: busybox}, extensions)
	// The nft flavour only: the other one would load legacy tables into a pod by being looked at.
	for _, applet := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		entries = append(entries, Entry{Path: "/usr/sbin/" + applet, Link: "xtables-nft-multi"})
	}
	out, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask busybox for its applets: %w", err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet != "busybox" && applet != "ip" {
			entries = append(entries, Entry{Path: "/bin/" + applet, Link: "busybox"})
		}
	}
	return entries, nil
}

// iptablesExtensions is the directory of iptables' matches and targets.
func iptablesExtensions() (Entry, error) {
	found, err := filepath.Glob("/usr/lib/*/xtables")
	if err != nil || len(found) == 0 {
		return Entry{}, errors.Join(errors.New("no directory of iptables extensions: no /usr/lib/*/xtables"), err)
	}
	return Entry{Path: found[0], Source: found[0]}, nil
}

// Iptables is the machine's iptables of both flavours, under names with the flavour, with all that it loads.
func Iptables(ctx context.Context) ([]Entry, error) {
	flavours := map[string]string{"nft": "/usr/sbin/xtables-nft-multi", "legacy": "/usr/sbin/xtables-legacy-multi"}
	entries, err := Closure(ctx, flavours["nft"], flavours["legacy"])
	if err != nil {
		return nil, err
	}
	for flavour, program := range flavours {
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				entries = append(entries, Entry{Path: "/usr/sbin/" + family + "-" + flavour + suffix, Link: filepath.Base(program)})
			}
		}
	}
	extensions, err := iptablesExtensions()
	return append(entries, extensions), err
}

// Tags lists the images of the catalog.
func Tags() []string {
	return []string{PauseTag, ToolsTag, HAProxyTag, NginxTag, TestAppTag, TestProxyTag}
}
