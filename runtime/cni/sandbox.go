package cni

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/podnet"
)

// The longest values that are accepted: Kubernetes' limits for names, and the file system's for paths.
const (
	maxLabel   = 63
	maxName    = 253
	maxID      = 256
	maxPathLen = 4096
)

// sandboxOf reads the sandbox from CNI_CONTAINERID, CNI_NETNS and CNI_ARGS. If the container is not a pod's, Name is empty.
func sandboxOf(id, netns, args string) (podnet.Sandbox, error) {
	s := podnet.Sandbox{ID: id, NetNS: netns}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok && strings.TrimSpace(pair) != "" {
			return podnet.Sandbox{}, fmt.Errorf("CNI_ARGS: %q: want KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			s.Namespace = value
		case "K8S_POD_NAME":
			s.Name = value
		case "K8S_POD_UID":
			s.UID = value
		}
	}
	if s.Namespace == "" && s.Name == "" {
		return podnet.Sandbox{}, nil
	}
	return s, validate(s)
}

// validate refuses values that no runtime uses for a pod. Both ends of the socket call it.
func validate(s podnet.Sandbox) error {
	var errs []error
	for _, c := range []struct {
		ok            bool
		format, value string
	}{
		{isLabel(s.Namespace), "pod namespace %.80q: not the name of a namespace", s.Namespace},
		{isSubdomain(s.Name), "pod name %.80q: not the name of a pod", s.Name},
		{s.UID == "" || isID(s.UID), "pod UID %.80q: not a UID", s.UID}, // some runtimes do not pass it
		{isID(s.ID), "sandbox ID %.80q: not an ID", s.ID},
		{s.NetNS == "" || isCleanPath(s.NetNS), "network namespace %.80q: want an absolute path, with nothing to resolve in it", s.NetNS}, // DEL may come without a path
		{!isPerProcess(s.NetNS), "network namespace %.80q: means another file for each process", s.NetNS},
	} {
		if !c.ok {
			errs = append(errs, fmt.Errorf(c.format, c.value))
		}
	}
	return errors.Join(errs...)
}

// isLabel reports whether s is an RFC 1123 label, as a namespace's name must be.
func isLabel(s string) bool {
	return len(s) <= maxLabel && !strings.Contains(s, ".") && isSubdomain(s)
}

// isSubdomain reports whether s is an RFC 1123 subdomain, as a pod's name must be.
func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || !consistsOf(label, "abcdefghijklmnopqrstuvwxyz0123456789-") {
			return false
		}
	}
	return len(s) <= maxName
}

// isID reports whether CNI allows s as a container ID.
func isID(s string) bool {
	const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return s != "" && len(s) <= maxID && strings.Contains(alphanumeric, s[:1]) && consistsOf(s, alphanumeric+"_.-")
}

// isCleanPath reports whether s is an absolute path without "..", "." or control characters. Whoever opens it checks what it leads to.
func isCleanPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && len(s) <= maxPathLen && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' })
}

// isPerProcess reports whether a path means another file for each process: it would lead the agent elsewhere than the runtime.
func isPerProcess(s string) bool {
	return slices.ContainsFunc([]string{"/proc/self/", "/proc/thread-self/", "/dev/"}, func(dir string) bool { return strings.HasPrefix(s, dir) })
}

func consistsOf(s, allowed string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}
