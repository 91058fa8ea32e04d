package xtables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
)

// ErrUserNamespace means that a network namespace belongs to a pod with a user namespace of its own.
var ErrUserNamespace = errors.New("the pod has hostUsers: false, and iptables cannot tell whose its connections are: the kernel refuses " +
	"owner matches in a network namespace that belongs to another user namespace (xt_owner, EINVAL); " +
	"use the nftables backend, or hostUsers: true")

// ownerMatches returns an error if the kernel would refuse owner matches, which each of our rule sets has.
func ownerMatches(ns *netns.NS) error {
	fd, err := unix.IoctlRetInt(ns.Fd(), unix.NS_GET_USERNS)
	if errors.Is(err, unix.ENOTTY) {
		return nil // a kernel before 4.9, which cannot say
	}
	if errors.Is(err, unix.EPERM) {
		return ErrUserNamespace // not even a descendant of our user namespace
	}
	if err != nil {
		return fmt.Errorf("ask for the network namespace's owner: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing that could be lost
	var theirs, own unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &theirs), unix.Stat("/proc/self/ns/user", &own)); err != nil {
		return fmt.Errorf("identify user namespaces: %w", err)
	}
	if theirs.Dev != own.Dev || theirs.Ino != own.Ino {
		return ErrUserNamespace
	}
	return nil
}
