"""Chat templates: what they are given, and what they may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.clock import ManualClock
from slipstream.errors import InvalidRequestError, TokenizerError
from slipstream.tokenization.chat_template import ChatTemplate, load_chat_template
from slipstream.tokenization.tokenizer import load_tokenizer
from tests.support.tiny import write_tiny_tokenizer

USER = {"role": "user", "content": "hi"}

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def render(source: str, messages: Any = (USER,), **kwargs: Any) -> str:
    return ChatTemplate(source).render(messages, **kwargs)


class TestRendering:
    def test_messages_become_the_models_prompt(self) -> None:
        assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    def test_the_generation_prompt_can_be_left_out(self) -> None:
        assert render(CHATML, add_generation_prompt=False).endswith("<|im_end|>\n")

    def test_block_tags_leave_no_blank_lines(self) -> None:
        assert render("{% if true %}\n  {% set x = 1 %}\nx\n{% endif %}\n") == "x\n"

    def test_loops_can_be_left_early(self) -> None:
        assert (
            render(
                "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
            )
            == "01"
        )

    def test_json_is_not_escaped_for_html(self) -> None:
        assert render("{{ {'a': '<\u00e9> & \"'} | tojson }}") == '{"a": "<\u00e9> & \\""}'

    def test_json_can_be_indented(self) -> None:
        assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"

    def test_tools_and_documents_reach_the_template(self) -> None:
        source = "{{ tools[0].name }} {{ documents[0].title }} {{ tools is none }}"

        assert render(source, tools=[{"name": "f"}], documents=[{"title": "d"}]) == "f d False"

    def test_absent_tools_are_none(self) -> None:
        assert render("{{ tools is none }} {{ documents is none }}", tools=[]) == "True True"

    def test_further_arguments_reach_the_template(self) -> None:
        source = "{{ 'think' if enable_thinking else 'answer' }}"

        assert render(source, enable_thinking=True) == "think"
        assert render(source, enable_thinking=False) == "answer"

    def test_special_tokens_have_names(self) -> None:
        template = ChatTemplate("{{ bos_token }}x", named_tokens={"bos_token": "<s>"})

        assert template.render([USER]) == "<s>x"

    def test_the_date_comes_from_the_clock(self) -> None:
        template = ChatTemplate("{{ strftime_now('%Y') }}", clock=ManualClock(86400.0 * 365 * 10.5))

        assert template.render([USER]) == "1980"

    def test_training_marks_are_transparent(self) -> None:
        source = "{% generation %}{{ messages[0].content }}{% endgeneration %}!"

        assert render(source) == "hi!"

    def test_a_template_for_tools_is_used_when_there_are_tools(self) -> None:
        template = ChatTemplate({"default": "plain", "tool_use": "tools"})

        assert template.render([USER]) == "plain"
        assert template.render([USER], tools=[{"name": "f"}]) == "tools"


class TestMessages:
    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

        assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"

    def test_a_missing_content_is_empty_text(self) -> None:
        assert render("[{{ messages[0].content }}]", [{"role": "assistant"}]) == "[]"

    def test_tool_arguments_become_objects(self) -> None:
        function = {"name": "f", "arguments": '{"x": 1}'}
        message = {"role": "assistant", "tool_calls": [{"function": function}]}

        source = "{{ messages[0].tool_calls[0].function.arguments.x + 1 }}"

        assert render(source, [message]) == "2"
        assert function["arguments"] == '{"x": 1}'

    @pytest.mark.parametrize(
        ("message", "problem"),
        [
            ({"role": "user", "content": [{"type": "image_url"}]}, r'\[0\]\.content\[0\].*"image_'),
            ({"role": "user", "content": [{"type": "text"}]}, r"text must be a text, got None"),
            ({"role": "user", "content": ["a"]}, r'type "None"'),
            ({"role": "user", "content": 5}, "must be a text or a list of parts, got 5"),
            ({"content": "x"}, r"messages\[0\] must be an object with a role"),
            ("x", r"messages\[0\] must be an object with a role"),
            (
                {"role": "assistant", "tool_calls": [{"function": {"arguments": "["}}]},
                "must be a JSON object",
            ),
        ],
    )
    def test_a_malformed_message_is_refused(self, message: Any, problem: str) -> None:
        with pytest.raises(InvalidRequestError, match=problem) as refusal:
            render("x", [message])

        assert refusal.value.param == "messages"

    def test_no_messages_are_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="at least one message"):
            render("x", [])


class TestErrors:
    def test_what_the_template_refuses_is_told_in_its_own_words(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"^roles must alternate$") as refusal:
            render("{{ raise_exception('roles must alternate') }}")

        assert refusal.value.param == "messages"

    def test_a_template_that_fails_on_the_messages_names_its_line(self) -> None:
        with pytest.raises(InvalidRequestError, match="in line 2: can only concatenate"):
            render("a\n{{ messages[0].content + 1 }}")

    def test_an_undefined_name_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match="'nothing' is undefined"):
            render("{{ nothing.at.all }}")

    def test_a_template_that_is_not_valid_names_its_line(self) -> None:
        with pytest.raises(TokenizerError, match="not valid, line 2"):
            ChatTemplate("a\n{% for %}")

    @pytest.mark.parametrize("name", ["messages", "raise_exception", "bos_token"])
    def test_a_request_cannot_replace_the_servers_variables(self, name: str) -> None:
        template = ChatTemplate("x", named_tokens={"bos_token": "<s>"})
        arguments: dict[str, Any] = {name: 1}

        with pytest.raises(InvalidRequestError, match=f"cannot set {name}") as refusal:
            template.render([USER], **arguments)

        assert refusal.value.param == "chat_template_kwargs"

    def test_a_variable_that_no_template_reads_is_refused(self) -> None:
        template = ChatTemplate(
            {
                "default": "{% set thinking = thinking | default(1) %}{{ thinking }}",
                "tool_use": "{{ documents_first }}",
            }
        )
        assert template.render([USER], thinking=2, documents_first=True) == "2"
        with pytest.raises(InvalidRequestError, match="reads no documents"):
            template.render([USER], documents=[{"text": "a"}])
        with pytest.raises(InvalidRequestError, match=r"reads no thinkin, x$") as refusal:
            template.render([USER], thinkin=1, thinking=2, x=3)
        assert refusal.value.param == "chat_template_kwargs"


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.__class__.__base__ }}",
            "{{ ''['__class__']['__mro__'] }}",
            "{{ (''|attr('__class__')).__mro__ }}",
            "{{ raise_exception.__globals__ }}",
            "{{ strftime_now.__self__ }}{{ strftime_now.__func__.__globals__ }}",
            "{{ '{0.__class__.__mro__}'.format('') }}",
            "{{ '%s' % messages.append.__self__.__class__.__name__ }}",
            "{{ self.__init__.__globals__ }}",
            "{{ range.__class__ }}",
            "{{ namespace.__init__.__globals__ }}",
            "{% include '/etc/passwd' %}",
            "{% import 'os' as os %}{{ os }}",
        ],
    )
    def test_a_template_reaches_no_attributes(self, source: str) -> None:
        try:
            text = render(source)
        except (TokenizerError, InvalidRequestError):
            return
        assert text == ""

    def test_a_template_cannot_change_the_messages(self) -> None:
        messages = [dict(USER)]

        with pytest.raises(TokenizerError, match="not safe to run"):
            render("{{ messages.append(1) }}", messages)

        assert messages == [USER]

    @pytest.mark.parametrize(
        "source",
        [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
            "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
            "{{ range(10 ** 9) }}",
        ],
    )
    def test_endless_work_is_stopped(self, source: str) -> None:
        with pytest.raises(TokenizerError, match="not safe to run"):
            render(source)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ 'x' * 10 ** 9 }}",
            "{{ [1] * 10 ** 9 }}",
            "{{ 9 ** 9999 ** 9 }}",
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}",
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
            "{% endfor %}",
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
            "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
            "{% set x = 'a' * 9999 %}{{ x | replace('a', x) }}",
            "{% set x = 'a' * 9999 %}{{ ([x] * 9999) | join }}",
            "{% set x = 'a' * 9999 %}{{ x.join([x] * 9999) }}",
            "{% set x = 'a' * 9999 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
            "{% set x = 'a\n' * 9999 %}{{ x | indent(99999) }}",
            "{{ '%999999999d' % 1 }}",
            "{{ '%*d' % (999999999, 1) }}",
            "{{ '%999999999d' | format(1) }}",
            "{{ '{:>999999999}'.format(1) }}",
            "{{ '{:>{}}'.format(1, 999999999) }}",
            "{{ 'a' | center(999999999) }}",
            "{{ 'a'.center(999999999) }}",
            "{{ [1] | tojson(indent=99999) }}",
        ],
    )
    def test_huge_texts_are_stopped_before_they_are_made(self, source: str) -> None:
        with pytest.raises(TokenizerError, match="not safe to run"):
            render(source)

    def test_one_rendering_does_not_use_up_the_next_ones_budget(self) -> None:
        template = ChatTemplate("{% for a in range(80000) %}{% endfor %}x")

        assert [template.render([USER]) for _ in range(4)] == ["x"] * 4


class TestLoading:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write_tiny_tokenizer(tmp_path, 300)
        return tmp_path

    def test_the_models_own_template_is_used(self, folder: Path) -> None:
        template = load_chat_template(load_tokenizer(folder))

        assert template.render([USER]).endswith("<|im_start|>assistant\n")

    def test_a_template_file_replaces_it(self, folder: Path) -> None:
        (folder / "mine.jinja").write_text("{{ eos_token }}")

        template = load_chat_template(load_tokenizer(folder), path=folder / "mine.jinja")

        assert template.render([USER]) == "<|im_end|>"

    def test_a_model_without_a_template_is_refused_with_a_hint(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()

        with pytest.raises(TokenizerError, match="no chat template") as refusal:
            load_chat_template(load_tokenizer(folder))

        assert "model.chat_template" in (refusal.value.hint or "")

    def test_an_unreadable_template_file_is_refused_with_its_path(self, folder: Path) -> None:
        with pytest.raises(TokenizerError, match=r"nowhere\.jinja cannot be read"):
            load_chat_template(load_tokenizer(folder), path=folder / "nowhere.jinja")
