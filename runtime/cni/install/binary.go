package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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

// putBinary makes the plugin's binary in the runtime's directory equal to ours once, and from then on makes sure that there is one. A
// running plugin keeps the old file. If the directory is not writable, a plugin that is there is used: after a rollback it is the newer
// one, and both ends of the socket ignore fields that they do not know.
func (i *Installer) putBinary() error {
	if i.firstRoundDone && isProgram(i.binary()) {
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
	target := i.binary()
	if same, err := sameFile(i.config.Source, target); err != nil {
		return fmt.Errorf("read the plugin's binary: %w", err)
	} else if same {
		return nil
	}
	fault := "is not there"
	if isProgram(target) {
		fault = "is not the one of this version"
	}
	if err := copyFile(i.config.Source, target); err != nil {
		return fmt.Errorf("the binary %s %s; put the plugin into %s: %w; %s", target, fault, i.config.BinDir, err, remedy(err))
	}
	i.notify(Event{Kind: BinaryPlaced, Path: target})
	return nil
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

// copyFile copies to a temporary file in the target's directory, syncs it and renames it. The copy belongs to the directory's owner.
func copyFile(source, target string) error {
	from, err := os.Open(source) //nolint:gosec // the binary that we were given
	if err != nil {
		return err
	}
	defer from.Close()
	dir := filepath.Dir(target)
	owner, err := os.Stat(dir)
	if err != nil {
		return err
	}
	temp, err := writeTemp(dir, from, owner, 0o755)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(dir)
}

// isProgram reports whether path is an executable file.
func isProgram(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// sameFile reports whether target is an executable with the content of source.
func sameFile(source, target string) (bool, error) {
	want, err := os.ReadFile(source) //nolint:gosec // the binary that we were given
	if err != nil {
		return false, err
	}
	if !isProgram(target) {
		return false, nil
	}
	f, err := os.Open(target) //nolint:gosec // the directory that we were given
	if err != nil {
		return false, err
	}
	defer f.Close()
	have, err := io.ReadAll(io.LimitReader(f, int64(len(want))+1))
	return err == nil && bytes.Equal(have, want), err
}
