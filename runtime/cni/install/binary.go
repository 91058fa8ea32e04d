package install

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PlaceBinary installs only the binary. So the agent, which keeps the chain, does not need to write to a directory of programs that run
// as root. Unlike the agent, which uses whatever version is there, it fails if it cannot install this one.
func (i *Installer) PlaceBinary() error {
	removeTemps(i.config.BinDir)
	return i.replaceBinary()
}

// putBinary makes the plugin's binary in the runtime's directory equal to ours once, and from then on repairs a missing binary only. A
// running plugin keeps the old file. If the directory is not writable, an existing plugin is used. After a rollback it is of the newer
// version: both ends of the socket ignore unknown fields.
func (i *Installer) putBinary() error {
	if i.lastChained != "" && isProgram(i.binary()) {
		return nil
	}
	err := i.replaceBinary()
	if err == nil || !isProgram(i.binary()) {
		return err
	}
	if !i.otherBinaryNotified {
		i.otherBinaryNotified = true
		i.notify(Event{Kind: OtherBinary, Path: i.binary(), Err: err})
	}
	return nil
}

func (i *Installer) replaceBinary() error {
	target, fault := i.binary(), "is not there"
	program, err := os.ReadFile(i.config.Source)
	if err != nil {
		return fmt.Errorf("read the plugin's binary: %w", err)
	}
	if isProgram(target) {
		have, err := os.ReadFile(target)
		if err != nil {
			return fmt.Errorf("read the plugin's binary: %w", err)
		}
		if bytes.Equal(have, program) {
			return nil
		}
		fault = "is not the one of this version"
	}
	if err := writeProgram(target, program); err != nil {
		return fmt.Errorf("the binary %s %s; put the plugin into %s: %w; %s", target, fault, i.config.BinDir, err, remedy(err))
	}
	i.notify(Event{Kind: BinaryPlaced, Path: target})
	return nil
}

// writeProgram writes an executable file by a temporary one. It belongs to the directory's owner.
func writeProgram(path string, program []byte) error {
	owner, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(path), program, owner, 0o755)
	if err != nil {
		return err
	}
	return rename(temp, path)
}

// remedy returns what the node's administrator can do about a binary that could not be installed.
func remedy(err error) string {
	if errors.Is(err, unix.EROFS) {
		return "it cannot be written from here: restart the agent's pod, whose init container puts the binary there, " +
			"or run `cni install --binary-only` on the node"
	}
	return "the directory must exist and be writable, or hold this version already"
}

func (i *Installer) binary() string { return filepath.Join(i.config.BinDir, i.entry.kind) }

// isProgram reports whether path is an executable file.
func isProgram(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
