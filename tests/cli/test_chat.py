"""assay chat through a pseudo-terminal, as a person uses it."""
import os
import pty
import re
import select
import subprocess
import time

import pytest


class Terminal:
    def __init__(self, assay, *flags):
        self.master, slave = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen([assay.binary, "chat", assay.pocket, *flags], stdin=slave, stdout=slave, stderr=slave,
                                        env=assay.environment(), preexec_fn=self.own_terminal)
        os.close(slave)

    @staticmethod
    def own_terminal():
        import fcntl
        import termios
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def send(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, timeout=120):
        """The text up to the end of the pattern, which is then consumed."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    pytest.fail(f"ended before {pattern!r}: {self.text!r}")
        before, self.text = self.text[:found.end()], self.text[found.end():]
        return before

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def chat(assay):
    terminals = []

    def start(*flags):
        terminals.append(Terminal(assay, *flags))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_conversation_remembers_until_reset(chat):
    terminal = chat("--greedy", "--thinking", "off")
    terminal.expect("\n> ")
    terminal.send("What is 34 plus 55?\n")
    assert "34 + 55 = 89" in terminal.expect("\n> ")
    terminal.send("My name is Anna.\n")
    terminal.expect("\n> ")
    terminal.send("What is my name?\n")
    assert "Anna" in terminal.expect("\n> ")
    terminal.send("/reset\n")
    terminal.expect("new conversation.*\n> ")
    terminal.send("What is my name?\n")
    assert "Anna" not in terminal.expect("\n> ")
    terminal.send("/exit\n")
    assert terminal.process.wait(timeout=30) == 0


def test_answers_are_part_of_the_conversation(chat):
    terminal = chat("--greedy", "--thinking", "off", "--context-length", "448")
    terminal.expect("\n> ")
    terminal.send("Tell me a story about a fox.\n")
    assert "no more room" not in terminal.expect("\n> ")
    terminal.send("Tell me a story about a fox.\n")
    assert "no more room" in terminal.expect("\n> ")  # the first story fills most of the context
    terminal.send("/reset\n")
    terminal.expect("new conversation.*\n> ")
    terminal.send("Tell me a story about a fox.\n")
    assert "no more room" not in terminal.expect("\n> ")


def test_ctrl_c_stops_the_answer_not_the_program(chat):
    terminal = chat("--greedy", "--thinking", "off", "--threads", "1")
    terminal.expect("\n> ")
    terminal.send("Tell me a story about a fox.\n")
    terminal.expect(r"fox\.\r\n")  # the echo
    terminal.expect(r"\w+ \w+ \w+")  # the answer has begun
    terminal.send("\x03")
    assert "(stopped)" in terminal.expect("\n> ")
    terminal.send("\x03")
    terminal.expect("leaves.*\n> ")
    terminal.send("What is 34 plus 55?\n")
    assert "34 + 55 = 89" in terminal.expect("\n> ")
    terminal.send("\x04")
    assert terminal.process.wait(timeout=30) == 0


def test_reasoning_is_shown_dimmed(chat):
    terminal = chat("--greedy", "--thinking", "on")
    terminal.expect("\n> ")
    terminal.send("What is 34 plus 55?\n")
    answer = terminal.expect("\n> ")
    assert re.search(r"\x1b\[2m.+\x1b\[0m\r\n.*89", answer, re.DOTALL)


def test_piped_input_needs_no_terminal(assay):
    done = assay.run("chat", assay.pocket, "--greedy", "--thinking", "off", stdin="What is 34 plus 55?")
    assert done.returncode == 0
    assert "34 + 55 = 89" in done.stdout and "\x1b" not in done.stdout
