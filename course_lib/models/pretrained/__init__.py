"""Pretrained weights from an installed package, a folder or the Hugging Face hub: ``load_llama("folder")``.

A folder has a ``config.json``, and its tensors in ``model.safetensors`` or in several files with an index. Each file
here knows one family: what of its settings the course's class computes, and where each parameter stands.
"""

from course_lib.models.pretrained.bart import load_bart
from course_lib.models.pretrained.bert import load_bert, load_minilm
from course_lib.models.pretrained.deepseek import load_deepseek
from course_lib.models.pretrained.gpt2 import load_gpt2
from course_lib.models.pretrained.llama import load_llama
from course_lib.models.pretrained.minilm import minilm_folder
from course_lib.models.pretrained.mixtral import load_mixtral
from course_lib.models.pretrained.tokenizer import load_tokenizer

__all__ = [
    "load_bart",
    "load_bert",
    "load_deepseek",
    "load_gpt2",
    "load_llama",
    "load_minilm",
    "load_mixtral",
    "load_tokenizer",
    "minilm_folder",
]
